"""Extensions to Typer: lazily loaded commands, coroutine commands, and option groups."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

F = TypeVar("F", bound=Callable[..., Any])


class LazyCommand(TyperCommand):
    """A command or group. Its module is imported when it is called.

    `place` is `module:name` in `mooring.cli.commands`: a function, or a `CommandGroup`. `help`
    repeats the first paragraph of the docstring of a function; a test compares the two.
    """

    def __init__(
        self, name: str, place: str, help: str, *, cls: type[TyperCommand] = TyperCommand
    ) -> None:
        super().__init__(name, help=help)
        self._place = place
        self._cls = cls

    def load(self) -> Any:
        """Import the command."""
        module, _, attribute = self._place.partition(":")
        target = getattr(importlib.import_module(f"mooring.cli.commands.{module}"), attribute)
        app = CommandGroup()
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=self.name, help=self.help)
        else:
            app.command(self.name, cls=self._cls)(target)
        return get_group(app).commands[str(self.name)]


class LazyGroup(TyperGroup):
    """A group of `LazyCommand`s."""

    def load(self) -> dict[str, Any]:
        """Import all commands, by name."""
        return {
            name: command.load() if isinstance(command, LazyCommand) else command
            for name, command in self.commands.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


class CommandAfterDashes(TyperCommand):
    """A command that passes the arguments after `--` to another program. They are in `ctx.obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours, command = args, []
        if "--" in args:
            at = args.index("--")
            ours, command = args[:at], args[at + 1 :]
            if not command:
                raise typer.BadParameter("a command must follow", param_hint="--")
        ctx.obj = command
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND…]"]


class CommandGroup(typer.Typer):
    """A `Typer` that also accepts coroutine functions, and option groups as parameters: dataclasses
    with an annotated option in each field."""

    def __init__(self, help: str | None = None) -> None:
        super().__init__(help=help, no_args_is_help=True)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        register = super().command(name, **options)

        def decorate(function: F) -> F:
            register(_plain_function(function))
            return function

        return decorate


def _plain_function(function: Callable[..., Any]) -> Callable[..., None]:
    """The function in the form that Typer understands. The lines of a paragraph of its help are
    joined, because Typer would keep their ends in a narrow terminal."""
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hints[name] for name in parameters if dataclasses.is_dataclass(hints[name])}

    @functools.wraps(function)
    def plain(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        result = function(**values)
        if inspect.iscoroutine(result):
            from mooring.cli.io.connect import run_command

            run_command(result)

    options = [
        parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in parameters.items()
        if name not in groups
    ]
    for group in groups.values():  # the help shows them last
        options += _options_of(group)
    plain.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    plain.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    plain.__annotations__ = {option.name: option.annotation for option in options}
    return plain


def _options_of(group: type) -> list[inspect.Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=annotations[field.name],
        )
        for field in dataclasses.fields(group)
    ]
