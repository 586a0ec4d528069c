"""Build the sdist and the wheel in dist/ and check both in clean virtual environments.

make release
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
SOURCE = ROOT / "src" / "mooring"
_CHECK = """
import mooring, pathlib, sys
folder = pathlib.Path(mooring.__file__).parent
print(mooring.__version__, *(name for name in sys.argv[1:] if not (folder / name).is_file()))
"""
"""Prints the version, and the files that are missing."""


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    files = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    for file in files:
        check(file)
    for file in files:
        print(f"dist/{file.name}: {file.stat().st_size / 1e3:.0f} kB")
    return 0


def check(file: Path) -> None:
    """Install a distribution alone, call the command, and look for every file of the package."""
    version = version_of(file.name)
    with tempfile.TemporaryDirectory(prefix="mooring-release-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "-c", str(CONSTRAINTS), str(file), folder=folder)
        printed = run(str(python.with_name("mooring")), "--version", folder=folder).strip()
        imported, *missing = run(str(python), "-c", _CHECK, *package_files(), folder=folder).split()
    if (printed, imported) != (version, version):
        raise SystemExit(f"{file.name} contains {printed} and {imported}, not {version}")
    if missing:
        raise SystemExit(f"{file.name} lacks {', '.join(missing)}")
    print(f"{file.name}: installed, {printed}")


def package_files() -> list[str]:
    """The files of the package that git tracks, such as scripts, texts and the console."""
    tracked = run("git", "ls-files", ".", folder=str(SOURCE))
    return tracked.splitlines()


def version_of(name: str) -> str:
    """The version in the name of a wheel or an sdist."""
    return name.removesuffix(".tar.gz").split("-")[1]


def run(*command: str, folder: str | None = None) -> str:
    print("$", *command[:6], flush=True)
    done = subprocess.run(command, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"failed with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
