"""Every code block of the README and the docs runs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.server.settings import load
from mooring.testing.envoy import find_envoy
from mooring.testing.etcd import EtcdServer, find_etcdctl
from mooring.testing.redis import RedisServer, find_redis, launch
from mooring.testing.servers import free_port
from tests.acceptance.serving import Served
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = {"text", "json", "yaml"}
NAMED = re.compile(r"# ([\w-]+\.yaml)\n")
"""How a block begins that is a file, which the commands below it read."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for language, code in BLOCK.findall(page.read_text()):
        if language not in NOT_RUN or NAMED.match(code):
            yield language, code


class Reader:
    """Somebody who does what a page says, from top to bottom, in a folder of their own."""

    def __init__(
        self,
        folder: Path,
        start_etcd: Callable[..., EtcdServer],
        start_redis: Callable[..., RedisServer],
    ) -> None:
        self.folder = folder
        self._start_etcd, self._start_redis = start_etcd, start_redis
        self._address = self._python = ""
        self._elsewhere: dict[str, str] = {}
        self._exported: dict[str, str] = {}
        self._patience = 0.0
        self._redis: RedisServer | None = None
        self._server: Served | None = None
        self.served = contextlib.ExitStack()

    def follow(self, language: str, code: str) -> None:
        if (file := NAMED.match(code)) is not None:
            (self.folder / file[1]).write_text(code)
            return
        if language == "python":
            if "import " not in code:  # it goes on with the one above
                code = self._python + code
            self._python = code
            self.try_out([sys.executable, "-W", "error", "-c", code])
            return
        for line in code.replace("\\\n", "").splitlines():
            program, *arguments = shlex.split(line)
            if program == "make":
                targets = (ROOT / "Makefile").read_text()
                assert re.search(rf"^{arguments[0]}:", targets, re.MULTILINE), line
            if line in ("make run", "mooring serve"):
                self._server = self.served.enter_context(Served("", folder=self.folder))
                self._address = self._server.etcd
            elif program == "export":
                self.export(line, arguments[0].partition("=")[0])
            elif program == "make" or line == ". .venv/bin/activate":
                pass  # where the tests run it is done
            elif program == "mooring" and "--xds" in arguments:
                self.serve_xds()
            elif line == "mooring demo":
                self.begin(program, arguments)
            elif arguments[-1] == "&":
                self.begin(program, arguments[:-1])
            elif program == "mooring" and "watch" in arguments:
                self.follow_service([sys.executable, "-m", "mooring.cli", *arguments])
            elif program == "mooring":
                arguments, into = redirected(arguments)
                if "bootstrap" in arguments and "--server" not in arguments:
                    arguments += ["--server", "127.0.0.1:18000"]  # as it is by default
                self.run([sys.executable, "-m", "mooring.cli", *arguments], into=into)
            elif program == "curl" and shutil.which("curl") is None:
                pytest.fail("the pages use curl, which is not here: apt-get install curl")
            elif program == "curl" and "-N" in arguments:
                self.listen(line)
            elif program == "curl":
                self.try_out(["sh", "-c", line.replace("curl ", "curl -sS --fail-with-body ", 1)])
            elif program == "etcdctl" and "watch" in arguments:
                self.watch([str(find_etcdctl("3.5")), *arguments])
            elif program == "etcdctl":
                self.run([str(find_etcdctl("3.5")), *arguments])
            elif program == "redis-cli":
                there = ["-p", str(self.redis().port)]
                self.run([*launch(find_redis("7.0").with_name("redis-cli")), *there, *arguments])
            else:
                pytest.fail(f"no way is known to run {line!r}")

    def export(self, line: str, name: str) -> None:
        command, environment = self._prepared(["sh", "-c", f'{line} && printf %s "${name}"'])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        self._exported[name] = done.stdout

    def listen(self, line: str) -> None:
        """To a stream that has no end, until it has said hello."""
        command, environment = self._prepared(["sh", "-c", f"exec {line} -sS -m 60"])
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            heard = any(told == "event: hello\n" for told in curl.stdout)
            curl.kill()
        assert heard, line

    def redis(self) -> RedisServer:
        self._redis = self._redis or self._start_redis(series="7.0")
        return self._redis

    def serve_xds(self) -> None:
        etcd, xds = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        faces = [f"--etcd={etcd}", f"--xds={xds}"]
        self.served.enter_context(Served("", *faces, folder=self.folder))
        self._address = etcd
        self._elsewhere = {
            "127.0.0.1:18000": xds,
            "127.0.0.1:10000": f"127.0.0.1:{free_port()}",
        }

    def begin(self, program: str, arguments: list[str]) -> None:
        """In the background, to the end of the page."""
        if program == "mooring":
            command = [sys.executable, "-m", "mooring.cli", *arguments]
        else:
            assert program == "envoy", f"no way is known to begin {program!r}"
            # Without hot restart several run beside one another.
            command = [str(find_envoy()), *arguments, "--disable-hot-restart", "--concurrency", "1"]
        command, environment = self._prepared(command)
        process = subprocess.Popen(
            command, env=environment, cwd=self.folder, stderr=subprocess.DEVNULL
        )
        self.served.callback(process.wait)
        self.served.callback(process.terminate)
        self._patience = 60.0

    def try_out(self, arguments: list[str]) -> None:
        """Once; and again for a while where something was begun that may not be up yet."""
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                return self.run(arguments)
            time.sleep(0.2)
        self.run(arguments)

    def run(self, arguments: list[str], *, into: str = "") -> None:
        command, environment = self._prepared(arguments)
        done = subprocess.run(
            command,
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        differs = "diff" in arguments and done.returncode == 3
        assert done.returncode == 0 or differs, f"{arguments}\n{done.stdout}{done.stderr}"
        if into:
            (self.folder / into).write_text(done.stdout)

    def watch(self, arguments: list[str]) -> None:
        """In a terminal of its own, to the end of the page: it shows what is written."""
        command, environment = self._prepared(arguments)
        shown = self.served.enter_context((self.folder / "etcdctl").open("w+"))
        process = subprocess.Popen(command, env=environment, stdout=shown)
        self.served.callback(process.wait)
        self.served.callback(process.kill)
        position = arguments.index("watch")
        key = arguments[position + 1]

        def told() -> bool:
            self.run([*arguments[:position], "put", key, "something"])
            return f"PUT\n{key}\nsomething\n" in (self.folder / "etcdctl").read_text()

        until(told, within=40)

    def follow_service(self, arguments: list[str]) -> None:
        """In a terminal of its own, to the end of the page, which is to show somebody come and go
        there."""
        command, environment = self._prepared(arguments)
        terminal = self.folder / "terminal"
        shown = self.served.enter_context(terminal.open("w+"))
        process = subprocess.Popen(command, env=environment, stdout=shown, stderr=shown)
        self.served.callback(process.wait)
        self.served.callback(process.kill)
        self.served.callback(until, lambda: shows_both(terminal.read_text()))
        until(lambda: "no instances yet" in terminal.read_text(), within=40)

    def _prepared(self, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
        """A command with the addresses that are real here, and its environment."""
        words = " ".join(arguments)
        elsewhere = {"--store", "--registry"} & set(arguments)
        local = "mooring.cli" in arguments and not elsewhere
        if not self._address and ("2379" in words or "etcdctl" in words or local):
            self._address = self._start_etcd(series="3.5").address
        environment = {**os.environ, "ETCDCTL_API": "3", **self._exported}
        if local:
            environment["MOORING_STORE"] = f"etcd://{self._address}"
        if self._server is not None:
            environment["MOORING_DATA"] = str(self._server.data)
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            self._elsewhere["127.0.0.1:7480"] = self._server.http
        if "--endpoints" not in arguments:
            environment["ETCDCTL_ENDPOINTS"] = self._address
        words_here = [word.replace("127.0.0.1:2379", self._address) for word in arguments]
        if "127.0.0.1:6379" in words:
            there = self.redis().address
            words_here = [word.replace("127.0.0.1:6379", there) for word in words_here]
        for told, there in self._elsewhere.items():
            words_here = [word.replace(told, there) for word in words_here]
        return words_here, environment


def shows_both(text: str) -> bool:
    """Whether `mooring watch` showed that an instance came, and that it went."""
    return re.search(r"^\+ .*\n(?:~ .*\n)*- ", text, re.MULTILINE) is not None


def redirected(arguments: list[str]) -> tuple[list[str], str]:
    """Arguments without the file that the output goes to, and that file."""
    if ">" not in arguments:
        return arguments, ""
    position = arguments.index(">")
    return arguments[:position], arguments[position + 1]


@pytest.mark.timeout(400)  # a page starts servers and some twenty processes
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_code_runs(
    page: Path,
    fresh_etcd: Callable[..., EtcdServer],
    fresh_redis: Callable[..., RedisServer],
    tmp_path: Path,
):
    reader = Reader(tmp_path, fresh_etcd, fresh_redis)
    with reader.served:
        for language, code in blocks(page):
            assert language in ("python", "sh", "yaml"), (
                f"a block of {language!r} is not run: make it text"
            )
            reader.follow(language, code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path):
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        if heading:
            assert heading in anchors(there), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """What can stand behind the # of a link to a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


SETTINGS = [
    ROOT / "docs" / f"{name}.md" for name in ("access", "health-checks", "monitoring", "serve")
]


@pytest.mark.parametrize("page", SETTINGS, ids=lambda page: page.name)
def test_its_settings_of_serve_are_taken(page: Path, tmp_path: Path):
    files = [code for language, code in BLOCK.findall(page.read_text()) if language == "yaml"]
    assert files
    for code in files:
        (tmp_path / "mooring.yaml").write_text(code)
        load(tmp_path / "mooring.yaml")


def test_what_can_be_uncommented_of_the_settings_under_deploy_is_taken(tmp_path: Path):
    told = (ROOT / "deploy" / "mooring.yaml").read_text()
    file = tmp_path / "mooring.yaml"
    file.write_text(re.sub(r"^# ( *[\w-]+:(?: .*)?)$", r"\1", told, flags=re.MULTILINE))
    settings = load(file)
    assert settings.checks.enabled
    assert settings.alerts.webhook
    assert settings.tls
