"""Rules of the code that neither the linter nor the type checker enforces."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import mooring

ROOT = Path(mooring.__file__).parent
SOURCES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}

REPOSITORY = Path(__file__).parents[2]
REST = {
    str(path.relative_to(REPOSITORY)): ast.parse(path.read_text())
    for folder in ("bench", "tests", "tools")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
}

VAGUE = {"told", "found", "each"}
"""Names that do not say what a variable holds."""

TWINS = {
    "Bridge",
    "Channel",
    "Code",
    "FileOption",
    "Method",
    "Migration",
    "ServiceFeed",
    "StreamStream",
    "StreamUnary",
    "TenantMiddleware",
    "UnaryStream",
    "UnaryUnary",
}
"""Names that mean the same in two packages, such as those of asyncio and threads."""

SHORTEST = 40
ENTRY_POINTS = {"__init__.py", "__main__.py"}


def _bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module binds, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield line, name
            case ast.arg(arg=name, lineno=line):
                yield line, name
            case (
                ast.FunctionDef(name=name, lineno=line)
                | ast.AsyncFunctionDef(name=name, lineno=line)
            ):
                yield line, name
            case ast.ClassDef(name=name, lineno=line):
                yield line, name
            case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
                yield line, name


def test_names_say_what_they_hold():
    vague = [
        f"{module}:{line}: {name}"
        for module, tree in (TREES | REST).items()
        for line, name in _bound(tree)
        if name.strip("_").lower() in VAGUE
    ]
    assert vague == []


def _types(tree: ast.Module) -> Iterator[str]:
    """The names of the classes and type aliases of a module, without leading underscores."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                alias = name.lstrip("_")
                if alias[:1].isupper() and not alias.isupper():
                    yield alias


def test_unrelated_types_have_different_names():
    modules = defaultdict(list)
    for module, tree in TREES.items():
        for name in _types(tree):
            modules[name].append(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in TWINS} == {}
    assert set(shared) >= TWINS, "a name in TWINS is unique"


def _elements(node: ast.AST) -> list[ast.expr]:
    """The positional arguments of a call, or the elements of a list, set or tuple."""
    match node:
        case ast.Call(args=elements):
            return elements
        case ast.List(elts=elements) | ast.Set(elts=elements) | ast.Tuple(elts=elements):
            return elements
    return []


def test_arguments_and_elements_are_written_out():
    steered = [
        f"{module}:{element.lineno}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        for element in _elements(node)
        if isinstance(element, ast.Starred) and isinstance(element.value, ast.Tuple | ast.List)
    ]
    assert steered == []


def test_no_module_is_a_fragment():
    short = {
        module: lines
        for module, path in SOURCES.items()
        if path.name not in ENTRY_POINTS
        and (lines := len(path.read_text().splitlines())) < SHORTEST
    }
    assert short == {}
