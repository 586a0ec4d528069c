"""`mooring doctor`: checks of a store or a Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from mooring.cli.io import connect as reaching
from mooring.cli.io.connect import run_command
from mooring.doctor import Finding, examine, examine_redis
from mooring.hub import connect, open_store
from mooring.store.url import REDIS, parse

_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def doctor(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            envvar="MOORING_STORE",
            help="URL of the store or Redis (default: the local `mooring serve`)",
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON, one object per line")
    ] = False,
) -> None:
    """Check a store or a Redis: latency, version, clock, permissions, alarms.

    Exits with 1 if a check fails.
    """
    if not run_command(_examine(url or f"etcd://{reaching.LOCAL}?timeout=2s", as_json)):
        raise typer.Exit(1)


async def _examine(url: str, as_json: bool) -> bool:
    console = Console(soft_wrap=True, highlight=False)
    healthy = True
    async with _looking(url) as (where, findings):
        if not as_json:
            console.print(Text(where, style="bold"))
        async for finding in findings:
            healthy = healthy and finding.level != "error"
            if as_json:
                typer.echo(json.dumps(dataclasses.asdict(finding), ensure_ascii=False))
            else:
                console.print(_line(finding))
    return healthy


@contextlib.asynccontextmanager
async def _looking(url: str) -> AsyncIterator[tuple[str, AsyncIterator[Finding]]]:
    """The URL and the findings of a store, or of the Redis of a registry."""
    if parse(url).scheme in REDIS:
        async with connect(url) as hub:
            from mooring.registry.redis.registry import RedisRegistry

            redis = hub.registry
            assert isinstance(redis, RedisRegistry)
            yield redis.url, examine_redis(redis)
    else:
        async with open_store(url) as store:
            yield store.url, examine(store)


def _line(finding: Finding) -> Text:
    sign, colour = _SIGNS[finding.level]
    return Text.assemble((sign, colour), " ", (finding.about, "bold"), f": {finding.text}")
