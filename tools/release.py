"""Build the sdist and the wheel in dist/ and check both in clean virtual environments.

python tools/release.py
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
    """Install a distribution alone, call the command and import the package."""
    version = version_of(file.name)
    with tempfile.TemporaryDirectory(prefix="mooring-release-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "-c", str(CONSTRAINTS), str(file), folder=folder)
        printed = run(str(python.with_name("mooring")), "--version", folder=folder).strip()
        code = "import mooring; print(mooring.__version__, mooring.connect.__name__)"
        imported = run(str(python), "-c", code, folder=folder).split()
    if printed != version or imported != [version, "connect"]:
        raise SystemExit(f"{file.name} contains {printed} and {imported[0]}, not {version}")
    print(f"{file.name}: installed, {printed}")


def version_of(name: str) -> str:
    """The version in the name of a wheel or an sdist."""
    return name.removesuffix(".tar.gz").split("-")[1]


def run(*command: str, folder: str | None = None) -> str:
    print("$", *command, flush=True)
    done = subprocess.run(command, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"failed with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
