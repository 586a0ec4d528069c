"""The Chromium of this machine, or the one that `make tools` downloaded below .tools.

The latter uses the libraries and fonts beside it: nothing of it is installed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_UNPACKED = Path(__file__).parents[3] / ".tools/chromium"
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
)
"""Chromium contacts no host but the server of the page."""

_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
{folders}
  <cachedir>{cache}</cachedir>
{families}
</fontconfig>
"""
_FAMILIES = {
    "sans-serif": ("Inter", "WenQuanYi Zen Hei", "DejaVu Sans"),
    "system-ui": ("Inter", "WenQuanYi Zen Hei", "DejaVu Sans"),
    "monospace": ("DejaVu Sans Mono", "WenQuanYi Zen Hei Mono"),
}


@dataclass(frozen=True, slots=True)
class Chromium:
    path: str
    environment: dict[str, str]


def find_chromium(scratch: Path) -> Chromium:
    """Find Chromium, and the environment that it needs. It may write to `scratch`."""
    environment = {
        **os.environ,
        "FONTCONFIG_FILE": str(_fonts(scratch)),
        "HOME": str(scratch),
        "XDG_CACHE_HOME": str(scratch),
        "XDG_CONFIG_HOME": str(scratch),
    }
    unpacked = _UNPACKED.resolve() / "usr/lib/chromium/chromium"
    if unpacked.exists():
        environment["LD_LIBRARY_PATH"] = ":".join(_libraries())
        return Chromium(str(unpacked), environment)
    if (installed := shutil.which("chromium")) is not None:
        return Chromium(installed, environment)
    raise FileNotFoundError("there is no Chromium here: `make tools` brings one")


def _libraries() -> list[str]:
    root = _UNPACKED.resolve()
    folders = [root / library for library in _LIBRARIES if (root / library).exists()]
    folders += [root / library.removeprefix("usr/") for library in _LIBRARIES]
    more = [folder / name for folder in folders for name in ("nss", "pulseaudio")]
    return [str(folder) for folder in [*folders, *more] if folder.exists()]


def _fonts(scratch: Path) -> Path:
    """The settings of Fontconfig: the fonts of the machine, and ours, in a fixed order."""
    folders = [Path("/usr/share/fonts"), _UNPACKED.resolve() / "usr/share/fonts"]
    families = [
        f"  <alias><family>{name}</family><prefer>"
        + "".join(f"<family>{font}</family>" for font in fonts)
        + "</prefer></alias>"
        for name, fonts in _FAMILIES.items()
    ]
    file = scratch / "fonts.conf"
    directories = "\n".join(f"  <dir>{folder}</dir>" for folder in folders)
    cache = scratch / "fontconfig"
    file.write_text(_FONTS.format(folders=directories, cache=cache, families="\n".join(families)))
    return file
