"""A start loads only what it needs, since every script and every call in a shell waits for
it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from functools import cache

import pytest

from mooring.cli import app

HEAVY = {
    *("asyncio", "http.server", "ssl", "sqlite3"),
    *("google.protobuf", "grpc", "hiredis", "hprose", "httpx", "redis"),
    *("cryptography", "immutables", "msgspec", "prometheus_client", "psutil", "yaml"),
    *("pytest_asyncio", "rich", "starlette", "typer", "uvicorn", "uvloop"),
}
"""Slow to load, and not needed by every program."""

MODULES = "import json, sys; sys.stderr.write('\\n' + json.dumps([*sys.modules]))"

COMMAND = """
import sys
from mooring.cli import main
sys.argv = "mooring {}".split()
try:
    main()
except SystemExit as end:
    assert not end.code
"""


@cache
def loaded(script: str) -> frozenset[str]:
    """The modules that a fresh interpreter has loaded after a script."""
    run = subprocess.run(
        [sys.executable, "-I", "-c", f"{script}\n{MODULES}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(json.loads(run.stderr.splitlines()[-1]))


LOOP = {"asyncio", "msgspec", "ssl"}


@pytest.mark.parametrize(
    ("script", "needed", "most_of_ours", "most_of_others"),
    [
        pytest.param("import mooring", set(), 3, 20, id="import"),
        pytest.param("from mooring import connect", LOOP, 51, 150, id="connect"),
        pytest.param(COMMAND.format("version"), {"typer"}, 11, 240, id="version"),
        pytest.param(COMMAND.format("--version"), {"typer"}, 9, 110, id="--version"),
        pytest.param(COMMAND.format("--help"), {"rich", "typer"}, 9, 290, id="help"),
        pytest.param(
            "import mooring.cli.commands.token", {"msgspec", "ssl", "typer"}, 33, 230, id="token"
        ),
        pytest.param(
            COMMAND.format("services --store=memory://"),
            {*LOOP, "typer", "uvloop"},
            76,
            310,
            id="services",
        ),
    ],
)
def test_a_start_loads_only_what_it_needs(
    script: str, needed: set[str], most_of_ours: int, most_of_others: int
):
    new = loaded(script) - loaded("")
    heavy = sorted(new & HEAVY - needed)
    assert not heavy, f"the start loads {', '.join(heavy)}: import them where they are used"
    ours = sorted(name for name in new if name.partition(".")[0] == "mooring")
    others = sorted(new.difference(ours))
    for names, most in ((ours, most_of_ours), (others, most_of_others)):
        assert len(names) <= most, f"{len(names)} modules instead of {most}: {', '.join(names)}"


def test_the_pytest_plugin_loads_nothing_else():
    """pytest imports it in every project where Mooring is installed."""
    new = loaded("import mooring.testing.fixtures") - loaded("import pytest, pytest_asyncio")
    assert new - loaded("import mooring") == {"mooring.testing", "mooring.testing.fixtures"}


def test_the_list_of_commands_shows_the_help_of_each():
    for name, command in app.load().items():
        first, _, _ = inspect.cleandoc(command.help).partition("\n\n")
        assert app.commands[name].help == " ".join(first.split()), name
