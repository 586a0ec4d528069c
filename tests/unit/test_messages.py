"""Messages as data: every kind has a text in both languages, and no parameter forges a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import mooring
from mooring.messages import TEXTS, joined, message, parameters

CHINESE = Path(mooring.__file__).parent / "server/console/locales/zh.js"
_ENTRY = re.compile(r'^  (\w+):\s+"(.*)",$', re.MULTILINE)


def chinese() -> dict[str, str]:
    _, _, table = CHINESE.read_text(encoding="utf-8").partition("export const MESSAGES = {\n")
    entries = _ENTRY.findall(table)
    assert len(entries) == table.count(",\n"), "an entry of the table could not be read"
    return dict(entries)


def test_the_chinese_table_has_the_same_kinds_with_the_same_parameters():
    assert {kind: parameters(text) for kind, text in chinese().items()} == {
        kind: parameters(text) for kind, text in TEXTS.items()
    }


def test_a_message_takes_exactly_the_parameters_of_its_text():
    assert message("moved", before="h:1", after="h:2").text == "moved from h:1 to h:2"
    with pytest.raises(ValueError, match="do not match"):
        message("moved", before="h:1")
    with pytest.raises(ValueError, match="do not match"):
        message("restarted", extra=1)
    with pytest.raises(KeyError):
        message("unknown")


def test_an_empty_optional_part_is_left_out():
    assert message("drained_by", by="root", reason="").text == "disabled by root"
    assert message("drained_by", by="root", reason="x").text == "disabled by root, reason: x"


@pytest.mark.parametrize(
    "reason",
    [
        "x; deregistered by root",
        'x"; deregistered by root; "',
        'x\\"; deregistered by root',
        "x\n; deregistered by root",
        "{by}; [deregistered by root]",
    ],
)
def test_a_reason_cannot_forge_a_sentence(reason: str):
    text = message("drained_by", by="ann", reason=reason).text
    start = "disabled by ann, reason: "
    assert text.startswith(start)
    assert json.loads(text.removeprefix(start)) == reason.replace("\n", "<U+000A>")


def test_a_value_that_an_instance_supplies_is_quoted_unless_it_is_one_word():
    messages = [message("is_down"), message("other_version", version="1; it is up", wanted="2")]
    assert joined(messages) == 'it is down; its version is "1; it is up", not 2'
    assert message("metadata_changed", names=["a", "b, c", "…"]).text == (
        'metadata changed: a, "b, c", …'
    )
