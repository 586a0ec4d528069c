"""Fixtures of the tests that use Mooring like a person."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
from collections.abc import Iterator

import pytest

from mooring import cli
from mooring.cli.typer_extensions import LazyCommand
from tests.acceptance.commands import Command, Done

_load_once = functools.cache(LazyCommand.load)
"""Building a command takes most of the time of a test here, so each is built once per process."""


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, which is faster than starting another. `given` is its standard
    input, keywords are environment variables."""

    def run(*arguments: str, given: str = "", **environment: str) -> Done:
        capfd.readouterr()  # what the test itself printed before
        with pytest.MonkeyPatch.context() as patch, _loggers_kept():
            patch.setenv("COLUMNS", "200")
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(LazyCommand, "load", _load_once)
            patch.setattr(sys, "argv", ["mooring", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
            patch.setattr(sys, "stdout", sys.stdout)  # restores what the command replaces
            with pytest.raises(SystemExit) as ended:
                cli.main()
            sys.stdout.flush()  # as a process does at its end
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code, *capfd.readouterr())

    return run


@contextlib.contextmanager
def _loggers_kept() -> Iterator[None]:
    """Restore the loggers that a command configures for its process."""
    before = {logger: _setup(logger) for logger in _loggers()}
    try:
        yield
    finally:
        for logger in _loggers():
            handlers, level, propagate = before.get(logger, ([], logging.NOTSET, True))
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.items()
    return [
        logger
        for name, logger in known
        if name.split(".")[0] == "mooring" and isinstance(logger, logging.Logger)
    ]


def _setup(logger: logging.Logger) -> tuple[list[logging.Handler], int, bool]:
    return list(logger.handlers), logger.level, logger.propagate
