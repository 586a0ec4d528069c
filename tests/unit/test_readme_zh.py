"""The quick start in Chinese says the same commands as the one in English, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_its_commands_are_those_of_the_readme():
    english = BLOCK.findall((ROOT / "README.md").read_text())
    chinese = BLOCK.findall((ROOT / "README.zh-CN.md").read_text())
    assert chinese
    assert [block for block in english if block in chinese] == chinese
