"""Write `mooring/sync/__init__.pyi`: what a type checker knows of the blocking API.

It is read from the sources of the async API (the types in `mooring.sync.__all__`) and turned by the
rules that `mooring.sync.proxy` follows at run time. Run it after changing a public signature; a
test fails until then.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import mooring
import mooring.sync
from mooring.sync.proxy import is_data, is_ours

TARGET = Path(__file__).parents[1] / "src/mooring/sync/__init__.pyi"

FUNCTIONS = ("connect", "timeout", "until_stopped")

API = {
    name: getattr(mooring, name).__module__
    for name in mooring.sync.__all__
    if name not in FUNCTIONS
}
"""The module of each type that has a blocking twin."""

INNER = frozenset(
    {
        "mooring.discovery.rotation.Rotation",
        "mooring.mirror.Feed",
        "mooring.registry.contract.InstanceFeed",
        "mooring.registry.contract.InstanceRecord",
        "mooring.registry.contract.LeaderLease",
        "mooring.registry.evictions.Evictions",
        "mooring.tenants.keys.TenantKeys",
        "mooring.tenants.publish.retention.Sweeper",
    }
)
"""Types that can be reached from these and are not public: members that use them are left out."""

HEADER = """\
# Written by tools/blocking_types.py from the async API: do not edit, run it again.
"""

EVENT = '''
class _Event(typing.Protocol):
    """An event of the loop's: wait for it, or look at it."""
    def is_set(self) -> bool: ...
    def wait(self) -> bool: ...
'''

TURNED = {
    "contextlib.AbstractAsyncContextManager": "contextlib.AbstractContextManager",
    "collections.abc.AsyncIterator": "collections.abc.Iterator",
    "collections.abc.AsyncIterable": "collections.abc.Iterable",
    "asyncio.Event": "_Event",
}
"""What a name of the async world becomes."""

SPECIAL = ("__len__", "__contains__", "__getitem__", "__iter__")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Left(Exception):
    """A member that uses a type which is not public."""


@dataclass
class Source:
    """One module of the async API, and what the names in it mean."""

    module: ModuleType
    imports: set[str]
    tree: ast.Module = field(init=False)
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = ast.parse(inspect.getsource(self.module))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    self.names[alias.asname or root] = alias.name if alias.asname else root
        for statement in self.tree.body:
            for name in _defined(statement):
                self.names[name] = f"{self.module.__name__}.{name}"

    def find(self, name: str) -> ast.ClassDef | FunctionNode:
        (definition,) = [
            node
            for node in self.tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
        ]
        return definition

    def turned(self, annotation: ast.expr | None, *, given: bool) -> str:
        """An annotation as the blocking API has it. `given`: something that callers pass in."""
        if annotation is None:
            return "None"
        return ast.unparse(_Turn(self, given).visit(copy.deepcopy(annotation)))

    def word(self, dotted: str, given: bool) -> str:
        """How a name is written in the stub."""
        if dotted in TURNED:
            dotted = TURNED[dotted]
            if "." not in dotted:
                return dotted
        module, _, name = dotted.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        home = getattr(value, "__module__", module)
        if API.get(name) == home:
            return name
        if isinstance(value, type) and is_ours(value) and not is_data(value) and not given:
            if f"{home}.{name}" in INNER:
                raise Left
            raise SystemExit(f"{home}.{name} is not in mooring.sync.__all__ or INNER: add it")
        self.imports.add(module)
        return dotted


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


class _Turn(ast.NodeTransformer):
    def __init__(self, source: Source, given: bool) -> None:
        self._source, self._given = source, given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        dotted = self._source.names.get(node.id)
        if dotted is None:
            assert hasattr(builtins, node.id), f"{node.id} in {self._source.module}"
            return node
        return ast.Name(self._source.word(dotted, self._given))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        root, _, rest = ast.unparse(node).partition(".")
        return ast.Name(self._source.word(f"{self._source.names[root]}.{rest}", self._given))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value) in ("Awaitable", "Coroutine"):
            awaited = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
            turned: ast.expr = self.visit(awaited)
            return turned
        if ast.unparse(node.value) == "Literal":
            return ast.Subscript(self.visit(node.value), node.slice)
        other = self.generic_visit(node)
        assert isinstance(other, ast.Subscript)
        return other


class Twin:
    """The blocking twin of one class, as text."""

    def __init__(self, source: Source, node: ast.ClassDef) -> None:
        self._source, self._node = source, node
        self._body = [*_inherited(source, node), *node.body]
        self._methods = {
            method.name: method
            for method in self._body
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    def __str__(self) -> str:
        bases = [
            self._source.turned(base, given=True)
            for base in self._node.bases
            if ast.unparse(base).startswith("Generic[") or ast.unparse(base) in API
        ]
        head = f"class {self._node.name}{f'({bases[0]})' if bases else ''}:"
        return "\n    ".join([head, *(list(self._members()) or ["..."])])

    def _members(self) -> Iterator[str]:
        for name, annotation in self._attributes():
            with contextlib.suppress(Left):
                typed = self._source.turned(annotation, given=False)
                yield f"@property\n    def {name}(self) -> {typed}: ..."
        for name, method in self._methods.items():
            if not name.startswith("_") or name in SPECIAL:
                with contextlib.suppress(Left):
                    yield f"{self._method(method)} -> {self._result(method)}: ..."
        yield from self._protocols()

    def _attributes(self) -> Iterator[tuple[str, ast.expr]]:
        for statement in self._body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id, statement.annotation
        init = self._methods.get("__init__")
        for node in ast.walk(init) if init else ():
            if isinstance(node, ast.AnnAssign | ast.Assign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                        assert init is not None
                        yield target.attr, _type_of(node, init)

    def _method(self, node: FunctionNode) -> str:
        lines = ["@property"] if "property" in _decorators(node) else []
        arguments = copy.deepcopy(node.args)
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for argument in (*plain, arguments.vararg, arguments.kwarg):
            if argument is not None and argument.annotation is not None:
                argument.annotation = ast.Name(self._source.turned(argument.annotation, given=True))
        arguments.defaults = [_default(value) for value in arguments.defaults]
        arguments.kw_defaults = [
            None if value is None else _default(value) for value in arguments.kw_defaults
        ]
        return "\n    ".join([*lines, f"def {node.name}({ast.unparse(arguments)})"])

    def _result(self, node: FunctionNode) -> str:
        turned = self._source.turned(node.returns, given=False)
        if "asynccontextmanager" in _decorators(node):
            self._source.imports.add("contextlib")
            inner = turned.removeprefix("collections.abc.Iterator[").removesuffix("]")
            return f"contextlib.AbstractContextManager[{inner}]"
        return turned

    def _protocols(self) -> Iterator[str]:
        if "__anext__" in self._methods:
            self._source.imports.add("typing")
            yield "def __iter__(self) -> typing.Self: ..."
            yield f"def __next__(self) -> {self._result(self._methods['__anext__'])}: ..."
        if "__aenter__" in self._methods:
            entered = self._result(self._methods["__aenter__"])
            yield f"def __enter__(self) -> {entered}: ..."
            yield (
                "def __exit__(self, kind: type[BaseException] | None = None, "
                "error: BaseException | None = None, trace: object = None) -> None: ..."
            )
            yield f"def open(self) -> {entered}: ..."
            yield "def close(self) -> None: ..."


def _inherited(source: Source, node: ast.ClassDef) -> Iterator[ast.stmt]:
    """The members of the base classes in the same module that have no twin of their own."""
    names = {ast.unparse(base) for base in node.bases} - API.keys()
    for base in source.tree.body:
        if isinstance(base, ast.ClassDef) and base.name in names:
            yield from base.body


def is_own(module: str) -> bool:
    return module.partition(".")[0] == "mooring"


def _decorators(node: FunctionNode) -> set[str]:
    return {ast.unparse(decorator) for decorator in node.decorator_list}


def _default(value: ast.expr) -> ast.expr:
    return value if isinstance(value, ast.Constant) else ast.Constant(...)


def _type_of(node: ast.Assign | ast.AnnAssign, init: FunctionNode) -> ast.expr:
    """An attribute's type: as annotated, or by its value: a constant, a new object, a parameter."""
    if isinstance(node, ast.AnnAssign):
        return node.annotation
    value = node.value
    if isinstance(value, ast.Constant):
        return ast.Name(type(value.value).__name__)
    if isinstance(value, ast.Call):
        return value.func
    if isinstance(value, ast.Name):
        for argument in (*init.args.args, *init.args.kwonlyargs):
            if argument.arg == value.id and argument.annotation is not None:
                return argument.annotation
    raise SystemExit(f"annotate it: {ast.unparse(value)} in line {value.lineno}")


def stub() -> str:
    """The text of the stub, formatted."""
    imports: set[str] = {"typing", "mooring.hub"}
    sources = {
        module: Source(importlib.import_module(module), imports) for module in set(API.values())
    }
    hub = sources["mooring.hub"]
    connect = hub.find("connect")
    assert isinstance(connect, ast.FunctionDef)
    holder = ast.ClassDef("holder", [], [], [connect], [])
    parts = [f"{Twin(hub, holder)._method(connect)} -> Hub: ..."]
    for name, module in API.items():
        node = sources[module].find(name)
        assert isinstance(node, ast.ClassDef)
        parts.append(str(Twin(sources[module], node)))
    lines = [
        HEADER,
        *(f"import {name}" for name in sorted(imports) if not is_own(name)),
        "",
        *(f"import {name}" for name in sorted(imports) if is_own(name)),
        "from mooring.sync.portal import timeout as timeout",
        "from mooring.sync.portal import until_stopped as until_stopped",
        f"__all__ = {sorted([*API, *FUNCTIONS])!r}",
        EVENT,
        *parts,
    ]
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", f"--stdin-filename={TARGET}", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    TARGET.write_text(stub())
