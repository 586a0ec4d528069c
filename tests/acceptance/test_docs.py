"""Every code block of the README and the docs runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.testing.etcd import EtcdServer, find_etcdctl

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = {"text", "json", "yaml"}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for language, code in BLOCK.findall(page.read_text()):
        if language not in NOT_RUN:
            yield language, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_code_runs(page: Path, fresh_etcd: Callable[..., EtcdServer], tmp_path: Path):
    found = list(blocks(page))
    needs_etcd = any("2379" in code or "etcdctl" in code for _, code in found)
    address = fresh_etcd(series="3.5").address if needs_etcd else ""
    for language, code in found:
        code = code.replace("127.0.0.1:2379", address)
        assert language in ("python", "sh"), f"a block of {language!r} is not run: make it text"
        if language == "python":
            run([sys.executable, "-W", "error", "-c", code], address)
        else:
            for line in code.splitlines():
                command(line, address)


def command(line: str, address: str) -> None:
    program, *arguments = shlex.split(line)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "mooring":
        run([sys.executable, "-m", "mooring.cli", *arguments], address)
    elif program == "etcdctl":
        run([str(find_etcdctl("3.5")), *arguments], address)
    else:
        pytest.fail(f"no way is known to run {line!r}")


def run(arguments: list[str], address: str) -> None:
    done = subprocess.run(
        arguments,
        env={**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": address},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
