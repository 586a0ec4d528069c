"""How far a long command is, where nobody sees a progress bar."""

from __future__ import annotations

import pytest

from mooring.cli.io import output
from mooring.cli.io.output import progress


def test_without_a_terminal_it_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with progress("copied") as report:
        report(1, 9)
        monkeypatch.setattr(output, "_PROGRESS_INTERVAL", 0.0)
        report(2, 9)
        report(3, None)
    assert capsys.readouterr().err == "copied 2 of 9\ncopied 3\n"
