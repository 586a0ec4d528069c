"""Commands that are loaded when they are called: none waits for the modules of the others."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class LazyCommand(TyperCommand):
    """What the list of commands shows of a command or a group, and where the rest is.

    `place` is `module:name` in `mooring.cli.commands`: a function, or the `Typer` of a group.
    `help` repeats the first paragraph of its own help; a test compares the two.
    """

    def __init__(
        self, name: str, place: str, help: str, *, cls: type[TyperCommand] = TyperCommand
    ) -> None:
        super().__init__(name, help=help)
        self._place = place
        self._cls = cls

    def load(self) -> Any:
        """The command itself."""
        module, _, attribute = self._place.partition(":")
        part = getattr(importlib.import_module(f"mooring.cli.commands.{module}"), attribute)
        app = typer.Typer()
        if isinstance(part, typer.Typer):
            app.add_typer(part, name=self.name)
        else:
            app.command(self.name, cls=self._cls)(part)
        return get_group(app).commands[str(self.name)]


class LazyGroup(TyperGroup):
    """A group of `LazyCommand` commands."""

    def load(self) -> dict[str, Any]:
        """All commands themselves, by name."""
        return {
            name: command.load() if isinstance(command, LazyCommand) else command
            for name, command in self.commands.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


class CommandAfterDashes(TyperCommand):
    """What follows `--` is another program's, and is not read here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours, command = args, []
        if "--" in args:
            at = args.index("--")
            ours, command = args[:at], args[at + 1 :]
            if not command:
                raise typer.BadParameter("nothing follows it", param_hint="--")
        ctx.obj = command
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND…]"]
