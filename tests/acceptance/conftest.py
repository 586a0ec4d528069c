"""Fixtures of the tests that use Mooring as a person does."""

from __future__ import annotations

import sys

import pytest

from mooring import cli
from tests.acceptance.commands import Command, Done


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, which is quicker than starting another."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["mooring", *arguments])
        monkeypatch.setattr(sys, "stdout", sys.stdout)  # restores what the command replaces
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code, *capfd.readouterr())

    return run
