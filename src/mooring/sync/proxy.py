"""Blocking proxies for the objects of the async API, created by one set of rules.

| async API | blocking |
|---|---|
| coroutine function, plain method | method that runs on the loop and waits |
| property, attribute | read on the loop |
| `async with` | `with`, or `open()` and `close()` |
| `async for` | `for` |
| object of the API | its proxy |
| live mapping, generator | a copy |
| argument: a function that the API awaits | plain function, called in the waiting thread |
| returned function (to end a subscription) | function that runs on the loop and waits |
| data: structs, tuples, dataclasses, errors; thread-safe objects | unchanged |
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from types import (
    BuiltinMethodType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    TracebackType,
)
from typing import Any, TypeVar, overload

import msgspec

from mooring.errors import Closed, InvalidRequest
from mooring.formatting import quoted
from mooring.sync.portal import Caller, Portal, until

T = TypeVar("T")

_DATA = (msgspec.Struct, tuple, BaseException, enum.Enum, type)
_SHARED = frozenset({"mooring.tenants.read.tenants.Tenants"})
"""Thread-safe types that need no proxy."""
_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, functools.partial)


class Blocking:
    """A proxy. Only the portal's loop touches `_target`."""

    __slots__ = ("__weakref__", "_owns", "_portal", "_target")

    _portal: Portal
    _target: Any
    _owns: bool
    """Whether the target is the resource that the portal opens and closes."""

    def __init__(self, portal: Portal, target: object, *, owns: bool = False) -> None:
        self._portal, self._target, self._owns = portal, target, owns

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(
                f"{self} has no {quoted(name)}: private attributes stay on the loop"
            )
        target = self._target
        if isinstance(
            inspect.getattr_static(type(target), name, None),
            (FunctionType, staticmethod, classmethod),
        ):
            function = getattr(target, name)
            outlives = not self._owns and not inspect.iscoroutinefunction(function)
            return _function(self._portal, function, outlives=outlives)
        return _read(self, lambda: getattr(target, name))

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<blocking {type(self._target).__qualname__} of {self._portal.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocking) and self._target is other._target

    def __hash__(self) -> int:
        return id(self._target)


def run(proxy: Blocking, work: Callable[[], Any], **options: Any) -> Any:
    """Run a function on the loop of a proxy, and wait for its wrapped result."""
    portal, target = proxy._portal, proxy._target

    async def on_loop() -> object:
        result = work()
        if inspect.isawaitable(result):
            result = await result
        return proxy if result is target else wrap(portal, result)

    return portal.call(on_loop, **options)


def _read(proxy: Blocking, work: Callable[[], Any]) -> Any:
    """Like `run`, for reading state. Works on a closed hub too: its locks are lost."""
    return run(proxy, work, outlives=not proxy._owns)


@overload
def within(proxy: object, work: Callable[[Any], Awaitable[T]]) -> T: ...
@overload
def within(proxy: object, work: Callable[[Any], T]) -> T: ...
def within(proxy: object, work: Callable[[Any], object]) -> object:
    """Call a function on the loop with the object behind a proxy, and wait."""
    assert isinstance(proxy, Blocking)
    return run(proxy, lambda: work(proxy._target))


def behind(proxy: object) -> tuple[Portal, Any]:
    """The portal of a proxy, and the object behind it, which only that loop may touch."""
    assert isinstance(proxy, Blocking)
    return proxy._portal, proxy._target


def _function(
    portal: Portal, function: Callable[..., object], *, outlives: bool = False
) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        caller = Caller()
        awaited = _awaited(getattr(function, "__func__", function))
        plain = [_unwrap(portal, value) for value in args]
        named = {name: _unwrap(portal, value) for name, value in kwargs.items()}
        if awaited:
            bound = inspect.signature(function).bind(*plain, **named)
            for name in awaited & bound.arguments.keys():
                bound.arguments[name] = _in_caller(portal, caller, bound.arguments[name])
            plain, named = list(bound.args), bound.kwargs

        made: object = None

        async def on_loop() -> object:
            nonlocal made
            result = function(*plain, **named)
            if inspect.isawaitable(result):
                result = await result
                made = None if awaited else result  # results of the caller's functions are its own
            return wrap(portal, result)

        async def undo() -> None:
            """Close a result without an owner: a lock acquired after its caller was interrupted."""
            if is_ours(type(made)) and (aclose := getattr(made, "aclose", None)) is not None:
                await aclose()

        return portal.call(on_loop, caller=caller, undo=undo, outlives=outlives)

    return functools.update_wrapper(call, function)


def _unwrap(portal: Portal, value: object) -> object:
    """An argument in the form that the loop gets."""
    if not isinstance(value, Blocking):
        return value
    if value._portal is not portal:
        raise InvalidRequest(f"{value} cannot be used with {portal.name}: they have other loops")
    return value._target


@functools.cache
def _awaited(function: Callable[..., object]) -> frozenset[str]:
    """The parameters that take a function that the async API awaits."""
    notes = getattr(function, "__annotations__", {})
    return frozenset(
        name for name, note in notes.items() if name != "return" and "], Awaitable[" in str(note)
    )


def _in_caller(
    portal: Portal, caller: Caller, function: Callable[..., object]
) -> Callable[..., Awaitable[object]]:
    """A blocking function in a form that the async API can await: runs in the calling thread."""

    async def on_loop(*args: object) -> object:
        return await caller.do(function, *(wrap(portal, value) for value in args))

    return on_loop


def wrap(portal: Portal, value: object) -> object:
    """A value of the loop in the form that other threads get. Must be called on the loop."""
    kind = type(value)
    if (wrapper := _wrappers.get(kind)) is None:
        wrapper = _wrappers[kind] = _wrapper(kind)
    return wrapper(portal, value)


_wrappers: dict[type[Any], Callable[[Portal, Any], object]] = {}
_blocking: dict[type[Any], type[Blocking]] = {}


def _wrapper(kind: type[Any]) -> Callable[[Portal, Any], object]:
    """The function that wraps values of a type."""
    if kind in (list, tuple, set, frozenset):
        return lambda portal, values: kind(wrap(portal, value) for value in values)
    if issubclass(kind, GeneratorType):
        return lambda portal, values: iter([wrap(portal, value) for value in values])
    if kind is dict or issubclass(kind, MappingProxyType):
        return lambda portal, items: {key: wrap(portal, value) for key, value in items.items()}
    if issubclass(kind, _FUNCTIONS):
        return _function
    if not is_data(kind) and (is_ours(kind) or is_async(kind)):
        return blocking(kind)
    return lambda _, value: value


def is_data(kind: type) -> bool:
    """Whether any thread may use objects of a type, because they are immutable or thread-safe."""
    shared = f"{kind.__module__}.{kind.__qualname__}" in _SHARED
    return shared or issubclass(kind, _DATA) or dataclasses.is_dataclass(kind)


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "mooring"


def is_async(kind: type) -> bool:
    methods = ("__aenter__", "__aiter__", "__anext__")
    return issubclass(kind, asyncio.Event) or any(hasattr(kind, name) for name in methods)


def blocking(kind: type[Any]) -> type[Blocking]:
    """The proxy type for a type. Subtypes have proxy types that are subtypes."""
    if kind not in _blocking:
        _blocking.setdefault(kind, _make_blocking(kind))  # concurrent threads get the same type
    return _blocking[kind]


def _make_blocking(kind: type[Any]) -> type[Blocking]:
    bases = tuple(blocking(base) for base in kind.__bases__ if is_ours(base)) or (Blocking,)
    members: dict[str, object] = {
        "__slots__": (),
        "__doc__": kind.__doc__,
        "__module__": "mooring.sync",
    }
    if hasattr(kind, "__aenter__"):
        members |= {"__enter__": _enter, "__exit__": _exit}
        members |= {} if hasattr(kind, "open") else {"open": _enter, "close": _close}
    if hasattr(kind, "__anext__"):
        members |= {"__iter__": lambda self: self, "__next__": _next}
    elif hasattr(kind, "__aiter__"):
        members["__iter__"] = _aiter
    elif hasattr(kind, "__iter__"):
        members["__iter__"] = _iter
    if hasattr(kind, "__class_getitem__"):
        members["__class_getitem__"] = classmethod(lambda cls, _: cls)
    for name in ("__len__", "__contains__", "__getitem__"):
        if hasattr(kind, name):
            members[name] = _special(name)
    return type(kind.__name__, bases, members)


def _enter(self: Blocking) -> object:
    if self._owns:
        self._portal.open()
        return self
    target = self._target
    return run(self, target.__aenter__, undo=lambda: target.__aexit__(None, None, None))


def _exit(
    self: Blocking,
    kind: type[BaseException] | None = None,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
) -> bool | None:
    if not self._portal.was_running:
        return None  # in a forked child, or when the interpreter is exiting
    if self._owns:
        self._portal.close()
        return None
    work = functools.partial(self._target.__aexit__, kind, error, trace)
    with until(None):
        try:
            return bool(run(self, work, outlives=True))
        except Closed:
            if self._portal.running:
                raise
            return None  # closed with its hub


def _close(self: Blocking) -> None:
    _exit(self)


def _next(self: Blocking) -> object:
    try:
        return run(self, self._target.__anext__)
    except StopAsyncIteration:
        raise StopIteration from None


def _aiter(self: Blocking) -> Iterator[object]:
    iterator: Iterator[object] = run(self, self._target.__aiter__)
    return iterator


def _iter(self: Blocking) -> Iterator[object]:
    return iter(_read(self, lambda: list(self._target)))


def _special(name: str) -> Callable[..., object]:
    def special(self: Blocking, *args: object) -> object:
        return _read(self, lambda: getattr(self._target, name)(*args))

    return special
