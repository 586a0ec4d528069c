"""Print the test files that belong to source files, by default to those changed since the last
commit.

python tools/tests_of.py [src/mooring/locks/lock.py …]

The tests of a module are those that import it, or else its package, and those that are named after
it or its package. A changed test file is its own test.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path, PurePosixPath


def main() -> int:
    changed = sys.argv[1:] or _changed()
    imports = {path: _imports(path) for path in sorted(Path("tests").rglob("test_*.py"))}
    chosen: set[Path] = set()
    for name in changed:
        path = PurePosixPath(name)
        if path.suffix != ".py":
            continue
        if path.parts[0] == "tests":
            below = path if path.name.startswith("test_") else path.parent
            chosen.update(each for each in imports if each.is_relative_to(below))
        elif path.parts[0] == "src":
            chosen.update(_tests_of(".".join(path.with_suffix("").parts[1:]), imports))
    if not chosen:
        print("no changed file has tests", file=sys.stderr)
        return 1
    print(*sorted(chosen), sep="\n")
    return 0


def _changed() -> list[str]:
    listed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line[3:] for line in listed.stdout.splitlines()]


def _imports(path: Path) -> set[str]:
    """What a file imports: modules, and names in modules, which may be modules themselves."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


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
