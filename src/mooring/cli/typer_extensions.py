"""Extensions to Typer: lazily loaded commands, coroutine commands, option groups, concise help."""

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


class ConciseHelp:
    """A command whose help shows `SERVICE`, `--json` and `--count N`. Typer adds the Python type of
    each parameter, also of flags, and puts required arguments in braces."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            shown = parameter.metavar if parameter.param_type_name == "option" else None
            parameter.display_type_rich = lambda ctx, shown=shown: shown
            parameter._get_number_range_help_str = lambda: None
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


class ConciseCommand(ConciseHelp, TyperCommand):
    """A command, with concise help."""


class ConciseGroup(ConciseHelp, TyperGroup):
    """A group of commands, with concise help."""


class LazyCommand(TyperCommand):
    """A command or group. Its module in `mooring.cli.commands` is imported when it is called.

    The module has an `app`, which is a `CommandGroup`, or a function of the command's name. `help`
    repeats the first paragraph of the docstring of a function; a test compares the two.
    """

    def __init__(self, name: str, module: str, help: str, panel: str) -> None:
        super().__init__(name, help=help, rich_help_panel=panel)
        self._module = f"mooring.cli.commands.{module}"

    def load(self) -> Any:
        """Import the command."""
        module, name, app = importlib.import_module(self._module), str(self.name), CommandGroup()
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=self.help)
        else:
            function = getattr(module, name)
            runs_another = "context" in inspect.signature(function).parameters
            app.command(name, cls=CommandAfterDashes if runs_another else ConciseCommand)(function)
        return get_group(app).commands[name]


class LazyGroup(ConciseGroup):
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


class CommandAfterDashes(ConciseCommand):
    """A command that runs the program after `--`. Its function gets that in `context.obj`."""

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
        super().__init__(cls=ConciseGroup, help=help, no_args_is_help=True)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        register = super().command(name, **{"cls": ConciseCommand, **options})

        def decorate(function: F) -> F:
            register(_plain_function(function))
            return function

        return decorate


def _plain_function(function: Callable[..., Any]) -> Callable[..., None]:
    """The function in the form that Typer understands. The lines of a paragraph of its help are
    joined, because Typer would keep their ends in a narrow terminal."""
    hints = get_type_hints(function)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }

    @functools.wraps(function)
    def plain(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        result = function(**values)
        if inspect.iscoroutine(result):
            from mooring.cli.io.connect import run_command

            run_command(result)

    options: list[inspect.Parameter] = []
    for source in (function, *groups.values()):  # the help shows the groups last
        annotations = get_type_hints(source, include_extras=True)
        options += [
            parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=annotations[name])
            for name, parameter in inspect.signature(source).parameters.items()
            if name not in groups
        ]
    plain.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    plain.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    plain.__annotations__ = {option.name: option.annotation for option in options}
    return plain
