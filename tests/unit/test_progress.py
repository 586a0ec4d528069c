"""The progress of a long command without a terminal."""

from __future__ import annotations

import pytest

from mooring.cli.io import streams
from mooring.cli.io.streams import progress


def test_without_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with progress("copied") as report:
        report(1, 9)
        monkeypatch.setattr(streams, "_PROGRESS_INTERVAL", 0.0)
        report(2, 9)
        report(3, None)
    assert capsys.readouterr().err == "copied 2 of 9\ncopied 3\n"
