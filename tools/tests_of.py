"""Print the test files that belong to source files, by default to those changed since the last
commit.

python tools/tests_of.py [src/mooring/locks/lock.py …]

The tests of a module are those that import it (or its package, if none does), and those that are
named after it or its package. The tests of a script, an SQL file or a page of the console are in a
folder that is named after its folder; otherwise, they are those of its package. The test of a tool
is named after it. A changed test file is its own test. A page of the documentation is tested by
tests/acceptance/test_docs.py.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

DOCUMENTATION = Path("tests/acceptance/test_docs.py")


def main() -> int:
    chosen = chosen_for(sys.argv[1:] or _changed(), imports_of_tests())
    if not chosen:
        print("no changed file has tests", file=sys.stderr)
        return 1
    print(*sorted(chosen), sep="\n")
    return 0


def imports_of_tests() -> dict[Path, set[str]]:
    return {path: _imports(path) for path in sorted(Path("tests").rglob("test_*.py"))}


def chosen_for(changed: list[str], imports: dict[Path, set[str]]) -> set[Path]:
    chosen: set[Path] = set()
    for name in changed:
        path = Path(name)
        if path.parts[0] == "tests":
            itself = path.is_dir() or path.name.startswith("test_")
            below = path if itself else path.parent
            chosen.update(test for test in imports if test.is_relative_to(below))
        elif path.parts[0] == "src" and path.suffix == ".py":
            chosen.update(_tests_of(_module(path.with_suffix("")), imports))
        elif path.parts[0] == "src":
            chosen.update(_tests_of_data(path, imports))
        elif path.parts[0] == "tools":
            chosen.update(test for test in imports if test.stem == f"test_{path.stem}")
        elif path.suffix == ".md":
            chosen.add(DOCUMENTATION)
    return chosen


def _changed() -> list[str]:
    listed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line[3:] for line in listed.stdout.splitlines()]


def _imports(path: Path) -> set[str]:
    """The modules that a file imports, and the names it imports from them, which may be modules."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module)
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
    return imported


def _module(path: Path) -> str:
    return ".".join(path.parts[1:])


def _tests_of_data(path: Path, imports: dict[Path, set[str]]) -> set[Path]:
    """The tests of a package, or of a file in it that is not a module."""
    package = next(
        folder for folder in (path, *path.parents) if Path(folder, "__init__.py").exists()
    )
    folders = {*path.relative_to(package).parts[:-1]}
    own = {test for test in imports if folders.intersection(test.parent.parts)}
    return own or _tests_of(_module(package), imports)


def _tests_of(module: str, imports: dict[Path, set[str]]) -> set[Path]:
    module = module.removesuffix(".__init__")
    words = {f"_{part.removesuffix('s')}" for part in module.split(".")[1:][-2:]}
    named = {path for path in imports if any(word in path.stem for word in words)}
    users: set[Path] = set()
    while not users:
        below = module + "."
        users = {
            path
            for path, names in imports.items()
            if any(name == module or name.startswith(below) for name in names)
        }
        module = module.rpartition(".")[0]
    return named | users


if __name__ == "__main__":
    sys.exit(main())
