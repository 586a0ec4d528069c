"""A page in Chinese shows the same code and commands as the page in English, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = re.compile(r"^```(?:sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHINESE = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"
SPLIT = re.compile(f"{CHINESE}\n *{CHINESE}")
"""A line break in a Chinese sentence, which browsers show as a space."""
TRANSLATIONS = sorted((DOCS / "zh").glob("**/*.md"))


def test_the_quick_start_has_the_commands_of_the_readme():
    english = CODE.findall((ROOT / "README.md").read_text())
    chinese = CODE.findall((ROOT / "README.zh-CN.md").read_text())
    assert chinese
    assert [block for block in english if block in chinese] == chinese


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_translation_has_the_code_blocks_of_the_original(page: Path):
    english = DOCS / page.relative_to(DOCS / "zh")
    assert BLOCK.findall(page.read_text()) == BLOCK.findall(english.read_text())


@pytest.mark.parametrize(
    "page", [*TRANSLATIONS, ROOT / "README.zh-CN.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_no_sentence_in_chinese_is_split_over_lines(page: Path):
    assert SPLIT.findall(BLOCK.sub("", page.read_text())) == []
