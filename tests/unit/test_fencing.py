"""A fencing guard outside the store refuses stale tokens."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mooring.errors import InvalidRequest, StaleToken
from mooring.locks import fencing


def test_a_token_older_than_the_newest_is_refused():
    keeper = fencing.Guard()
    keeper.admit("file", 5)
    keeper.admit("file", 5)
    keeper.admit("file", 9)
    with pytest.raises(StaleToken, match="5, whose holder lost the lock: 9 was recorded"):
        keeper.admit("file", 5)
    keeper.admit("other", 1)


@pytest.mark.parametrize("token", [0, -1, None, "5"])
def test_an_invalid_token_is_refused(token: int):
    with pytest.raises(InvalidRequest, match="token"):
        fencing.Guard().admit("file", token)


def test_a_database_stores_the_newest_token_in_the_same_transaction(tmp_path: Path):
    one, two = (sqlite3.connect(tmp_path / "db") for _ in range(2))
    one.execute(fencing.SQL["table"])
    one.commit()
    fencing.admit(one.cursor(), "report", 7)
    one.rollback()
    fencing.admit(two.cursor(), "report", 5)  # the write with token 7 was rolled back
    two.commit()
    fencing.admit(one.cursor(), "report", 9)
    one.commit()
    with pytest.raises(StaleToken, match="'report' rejects the fencing token 5"):
        fencing.admit(two.cursor(), "report", 5)
    two.rollback()
    fencing.admit(two.cursor(), "report", 9)
    two.commit()
    one.close()
    two.close()


def test_parameters_use_the_style_of_the_driver():
    assert "VALUES (%s, %s)" in fencing.admission("format")
    assert "VALUES ($1, $2)" in fencing.admission("numeric")
    assert "VALUES (?, ?)" in fencing.admission("qmark")
    with pytest.raises(InvalidRequest, match="pyformat"):
        fencing.admission("pyformat")  # type: ignore[arg-type]
