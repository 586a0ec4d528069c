"""Every code block of the README and the docs runs."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
import yaml

import mooring.sync
from mooring.errors import MooringError
from mooring.server.settings import load
from mooring.store import Delete, everything
from mooring.testing.etcd import EtcdServer, find_etcdctl
from mooring.testing.redis import RedisServer, find_redis, launch
from mooring.testing.servers import free_port
from tests.acceptance.commands import Command, python_program
from tests.acceptance.forking import Forked
from tests.acceptance.serving import Served
from tests.envoy import find_envoy
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CHINESE = ROOT / "docs" / "zh"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TRANSLATED = {ROOT / "README.zh-CN.md", *CHINESE.glob("**/*.md")}
"""Their blocks are those of the English pages, as tests/unit/test_translations.py checks."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = {"text", "json", "toml", "yaml"}
NAMED = re.compile(r"# ([\w.-]+\.(?:py|yaml))\n")
"""The beginning of a block that is a file, which later commands read."""
OWN_PORTS = re.compile(r"\b(?:800\d|12379|17480|50051)\b")
"""The ports of servers that a page starts, which are replaced by free ones."""
PROGRAMS = {"cp", "etcdctl", "mv", "openssl", "python", "redis-cli"}
"""Programs that run in the foreground as written."""
OF_THE_PROCESS = ("os.kill", "os.environ")
"""Python code that changes its process, so that it needs a separate one."""


def name(page: Path) -> str:
    """The name of a page, such as `locks.md` or `guides/grpc.md`."""
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for language, code in BLOCK.findall(page.read_text()):
        if language not in NOT_RUN or NAMED.match(code):
            yield language, code


class Servers:
    """The servers of all pages, each started when a page first uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = contextlib.ExitStack()
        self._etcd: EtcdServer | None = None
        self._redis: RedisServer | None = None
        self._serving: Served | None = None
        self.xds = f"127.0.0.1:{free_port()}"

    def etcd(self) -> EtcdServer:
        if self._etcd is None:
            self._etcd = EtcdServer(self._folder / "etcd", series="3.5")
            self._started.callback(self._etcd.kill)
            self._etcd.start()
        return self._etcd

    def redis(self) -> RedisServer:
        if self._redis is None:
            self._redis = RedisServer(self._folder / "redis", series="7.0")
            self._started.callback(self._redis.kill)
            self._redis.start()
        return self._redis

    def serving(self) -> Served:
        if self._serving is None:
            etcd = f"127.0.0.1:{free_port()}"
            server = Served("", f"--etcd={etcd}", f"--xds={self.xds}", folder=self._folder)
            server.etcd = etcd
            self._serving = self._started.enter_context(server)
        return self._serving

    def clear(self) -> None:
        """Delete all keys, so that the next page starts with empty servers."""
        for server in (self._etcd, self._serving):
            if server is not None:
                with mooring.sync.connect(server.url) as hub:
                    hub.store.commit(Delete(everything()))
        if self._redis is not None:
            self._redis.command("FLUSHALL")

    def close(self) -> None:
        self._started.close()


class Reader:
    """Follows a page from top to bottom, in a separate folder. Commands and blocks of Python run in
    this process, unless they continue in the background."""

    def __init__(
        self, servers: Servers, etcd: Callable[[], EtcdServer], command: Command, folder: Path
    ) -> None:
        self.folder, self._command = folder, command
        self._servers, self._etcd = servers, etcd
        self._serves = False
        self._python: dict[str, object] = {}
        self._envoy = f"127.0.0.1:{free_port()}"
        self._ports: dict[str, int] = {}
        self._jobs: list[Forked | subprocess.Popen[bytes]] = []
        self._store_is_exported = False
        self._begun, self._registered, self._patience = 0, 0, 0.0
        self.started = contextlib.ExitStack()
        self._set = pytest.MonkeyPatch()
        self.started.callback(self._set.undo)
        self._set.setenv("ETCDCTL_API", "3")
        self._set.setenv("no_proxy", "*")
        self._set.setenv("XDG_DATA_HOME", str(folder / "share"))
        self._set.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def follow(self, language: str, code: str) -> None:
        if (file := NAMED.match(code)) is not None:
            (self.folder / file[1]).write_text(self.here(code))
        elif language == "python":
            code = self.here(code)
            self.try_out(lambda: self.run_python(code))
        elif language == "sql":
            with contextlib.closing(sqlite3.connect(":memory:")) as database:
                database.executescript(code)
        else:
            for line in code.replace("\\\n", "").splitlines():
                self.follow_line(line)

    def follow_line(self, line: str) -> None:
        program, *arguments = shlex.split(line)
        if program == "make":
            targets = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{arguments[0]}:", targets, re.MULTILINE), line
        if line == "make run" or (arguments[:1] == ["serve"] and arguments[-1] != "&"):
            self.serve()
        elif program == "make" or line == ". .venv/bin/activate":
            pass  # already the case where the tests run
        elif program == "export":
            name = arguments[0].partition("=")[0]
            self._store_is_exported |= name == "MOORING_STORE"
            self._set.setenv(name, self.run("sh", "-c", f'{line} && printf %s "${name}"'))
        elif line == "mooring demo":
            self.begin(program, *arguments)
        elif arguments[-1] == "&":
            self.begin(program, *arguments[:-1])
        elif program == "kill":
            self.stop(int(arguments[0].removeprefix("%")))
        elif program == "mooring" and "watch" in arguments:
            self.follow_service(program, *arguments)
        elif program == "mooring":
            self.run_mooring(arguments)
        elif program == "curl" and shutil.which("curl") is None:
            pytest.fail("the pages use curl, which is not here: apt-get install curl")
        elif program == "curl" and "-N" in arguments:
            self.listen(line)
        elif program == "curl":
            line = line.replace("curl ", "curl -sS --fail-with-body ", 1)
            self.try_out(lambda: self.run("sh", "-c", line))
        elif program == "etcdctl" and "watch" in arguments:
            self.watch(program, *arguments)
        elif program in PROGRAMS:
            self.run(program, *arguments)
        else:
            pytest.fail(f"no way is known to run {line!r}")

    def serve(self) -> None:
        self._serves = True
        self._set.setenv("MOORING_DATA", str(self._servers.serving().data))

    def store(self) -> str:
        """The address of the server of the page, or of an etcd."""
        return self._servers.serving().etcd if self._serves else self._etcd().address

    def here(self, text: str) -> str:
        """A text of the page with the addresses of the test."""
        addresses: dict[str, Callable[[], str]] = {
            "127.0.0.1:2379": self.store,
            "127.0.0.1:6379": lambda: self._servers.redis().address,
            "127.0.0.1:7480": lambda: self._servers.serving().http,
            "127.0.0.1:18000": lambda: self._servers.xds,
            "127.0.0.1:10000": lambda: self._envoy,
        }
        for address, real in addresses.items():
            if address in text:
                text = text.replace(address, real())
        return OWN_PORTS.sub(lambda port: str(self.port(port[0])), text)

    def port(self, written: str) -> int:
        """The free port of a server that the page starts."""
        return self._ports.setdefault(written, free_port())

    def run_python(self, code: str) -> None:
        """Run it as a program, or after the block above, if it imports nothing."""
        if "import " in code:
            assert not (missing := not_imported(code)), f"{missing} are not imported by\n{code}"
            self._python = {"__name__": "__main__"}
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()):
            if any(word in code for word in OF_THE_PROCESS):
                done = python_program(code)
                assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
            else:
                exec(compile(code, "<block>", "exec"), self._python)

    def run_mooring(self, arguments: list[str]) -> None:
        arguments, into = redirected(arguments)
        if "bootstrap" in arguments and "--server" not in arguments:
            arguments += ["--server", "127.0.0.1:18000"]  # this is the default address
        words = [self.here(word) for word in arguments]
        with pytest.MonkeyPatch.context() as patch:
            if self.asks_the_store(arguments):
                patch.setenv("MOORING_STORE", f"etcd://{self.store()}")
            patch.chdir(self.folder)
            done = self._command(*words)
        differs = "diff" in arguments and done.code == 3
        assert done.code == 0 or differs, f"{arguments}\n{done.stdout}{done.stderr}"
        if into:
            (self.folder / into).write_text(done.stdout)

    def asks_the_store(self, arguments: Sequence[str]) -> bool:
        """Whether a command uses the store of the page, since it names no other."""
        named = {"--store", "--registry", "--config"} & set(arguments)
        return not (self._store_is_exported or named)

    def run(self, *command: str) -> str:
        """Run a program in the foreground, and return its output."""
        done = subprocess.run(
            self.prepared(*command),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def begin(self, *command: str) -> Path:
        """Start a program in the background until the end of the page; returns the file of its
        output."""
        program, *words = self.prepared(*command)
        self._begun += 1
        output = self.folder / f"{command[0]}-{self._begun}.log"
        with output.open("w") as shown, contextlib.chdir(self.folder):
            process: Forked | subprocess.Popen[bytes]
            if program == "mooring":
                environment = dict(os.environ)
                if "serve" in words:  # the variables would override its settings
                    environment.pop("MOORING_STORE", None)
                    environment.pop("MOORING_DATA", None)
                process = Forked(*words, environment=environment, stdout=shown, stderr=shown)
            else:
                process = subprocess.Popen([program, *words], stdout=shown, stderr=shown)
        self._jobs.append(process)
        self.started.callback(process.wait)
        self.started.callback(process.terminate)
        if "register" in command:
            self._registered += 1
            self.wait_for_instances(command[command.index("register") + 1], self._registered)
        elif "demo" in command:
            until(
                lambda: "Ctrl-C stops the demo" in output.read_text(), within=60
            )  # all instances are registered
            if self._serves:
                until(self.shows_the_demo, within=60)
        elif "serve" in command:
            until(lambda: "\nready" in output.read_text(), within=60)
        elif command[0] == "envoy" or "bridge" in command:
            self._patience = 60.0
        return output

    def stop(self, job: int) -> None:
        """Stop the command that was started in the background as the first, the second, …"""
        process = self._jobs[job - 1]
        process.terminate()
        code = process.wait(timeout=40)
        assert code in (0, -signal.SIGTERM), f"job {job} ended with {code}"

    def shows_the_demo(self) -> bool:
        """Whether the server knows all instances."""
        server = self._servers.serving()
        token = (server.data / "admin-token").read_text().strip()
        answer = httpx.get(
            f"http://{server.http}/admin/registry/health",
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
        )
        return bool(answer.json()["totalInstances"] >= 12)

    def wait_for_instances(self, service: str, number: int) -> None:
        """Wait until this number of instances is registered and accepts connections."""

        def answer() -> bool:
            instances = hub.registry.instances(service).instances
            for instance in instances:
                try:
                    socket.create_connection((instance.host, instance.port), timeout=5).close()
                except ConnectionRefusedError:
                    return False
            return len(instances) == number

        with mooring.sync.connect(f"etcd://{self.store()}") as hub:
            until(answer, within=60)

    def prepared(self, program: str, *arguments: str) -> list[str]:
        """A command with the programs and addresses of the test."""
        command = [self.here(word) for word in arguments]
        if program == "mooring" and self.asks_the_store(arguments):
            self._set.setenv("MOORING_STORE", f"etcd://{self.store()}")
        elif program == "etcdctl":
            program = str(find_etcdctl("3.5"))
            if "--endpoints" not in arguments:
                command = ["--endpoints", self.store(), *command]
        elif program == "redis-cli":
            program, *before = launch(find_redis("7.0").with_name("redis-cli"))
            command = [*before, "-p", str(self._servers.redis().port), *command]
        elif program == "envoy":
            program = str(find_envoy())
            # Without hot restart, several can run at the same time.
            command = [*command, "--disable-hot-restart", "--concurrency", "1"]
        return [program, *command]

    def try_out(self, action: Callable[[], object]) -> None:
        """Run an action. The first one after Envoy or a bridge was started is repeated until it
        succeeds: Envoy may not be ready yet, and a bridge writes with a delay. An error of Mooring
        fails at once."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                action()
            except MooringError:
                raise
            except (AssertionError, OSError):
                if time.monotonic() > deadline:
                    raise
            else:
                self._patience = 0.0
                return
            time.sleep(0.2)

    def listen(self, line: str) -> None:
        """Read a stream that does not end, until its hello."""
        command = self.prepared("sh", "-c", f"exec {line} -sS -m 60")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            greeted = any(event == "event: hello\n" for event in curl.stdout)
            curl.kill()
        assert greeted, line

    def watch(self, *command: str) -> None:
        """Run it in the background until the end of the page: it shows writes."""
        terminal = self.begin(*command)
        position = command.index("watch")
        key = command[position + 1]

        def shown() -> bool:
            self.run(*command[:position], "put", key, "something")
            return f"PUT\n{key}\nsomething\n" in terminal.read_text()

        until(shown, within=40)

    def follow_service(self, *command: str) -> None:
        """Run it in the background until the end of the page, which must show an instance register
        and leave."""
        terminal = self.begin(*command)
        self.started.callback(until, lambda: shows_both(terminal.read_text()))
        until(lambda: "no instances yet" in terminal.read_text(), within=40)


def not_imported(code: str) -> set[str]:
    """The modules of ours that a block uses without importing them. In this process another block
    may have imported them; for a user the block would fail."""
    nodes = list(ast.walk(ast.parse(code)))
    imported = {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    used = {
        f"mooring.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "mooring"
    }
    modules = {name for name in used if find_spec(name) is not None}
    return {
        module
        for module in modules
        if not any(f"{name}.".startswith(f"{module}.") for name in imported)
    }


def shows_both(text: str) -> bool:
    """Whether `mooring watch` showed that an instance registered and left."""
    return re.search(r"^\+ .*\n(?:~ .*\n)*- ", text, re.MULTILINE) is not None


def redirected(arguments: list[str]) -> tuple[list[str], str]:
    """Arguments without the redirection of the output, and its file."""
    if ">" not in arguments:
        return arguments, ""
    position = arguments.index(">")
    return arguments[:position], arguments[position + 1]


@pytest.fixture(scope="module")
def all_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("docs"))
    yield servers
    servers.close()


@pytest.fixture
def servers(all_servers: Servers) -> Iterator[Servers]:
    yield all_servers
    all_servers.clear()


@pytest.mark.parametrize("page", [page for page in PAGES if page not in TRANSLATED], ids=name)
def test_the_code_of_a_page_runs(
    page: Path,
    servers: Servers,
    fresh_etcd: Callable[..., EtcdServer],
    command: Command,
    tmp_path: Path,
):
    locks_others_out = "etcdctl auth enable" in page.read_text()
    etcd = functools.cache(lambda: fresh_etcd(series="3.5")) if locks_others_out else servers.etcd
    reader = Reader(servers, etcd, command, tmp_path)
    with reader.started:
        for language, code in blocks(page):
            assert language in ("python", "sh", "sql", "yaml"), (
                f"a block of {language!r} is not run: make it text"
            )
            reader.follow(language, code)
    del reader
    gc.collect()  # a connection that the page left open is reported for this page


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_that_are_not_run_contain_no_python(page: Path):
    for language, code in BLOCK.findall(page.read_text()):
        if language in NOT_RUN:
            with contextlib.suppress(SyntaxError):
                statements = ast.parse(code).body
                assert all(isinstance(statement, ast.Expr) for statement in statements), code
    assert not re.search(r"^ +```|^~~~", page.read_text(), re.MULTILINE), "BLOCK does not find it"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_data_blocks_of_a_page_are_valid(page: Path):
    parsers: dict[str, Callable[[str], object]] = {
        "json": json.loads,
        "toml": tomllib.loads,
        "yaml": yaml.safe_load,
    }
    for language, code in BLOCK.findall(page.read_text()):
        if language in parsers:
            assert isinstance(parsers[language](code), dict | list), code


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_are_valid(page: Path):
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if heading:
            assert heading in anchors(linked), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page, which can follow the # of a link."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


SETTINGS = [
    ROOT / "docs" / f"{name}.md"
    for name in ("access", "health-checks", "monitoring", "redis", "serve")
]


@pytest.mark.parametrize("page", SETTINGS, ids=lambda page: page.name)
def test_the_settings_of_serve_in_a_page_are_valid(page: Path, tmp_path: Path):
    files = [code for language, code in BLOCK.findall(page.read_text()) if language == "yaml"]
    assert files
    for code in files:
        (tmp_path / "mooring.yaml").write_text(code)
        load(tmp_path / "mooring.yaml")


def test_the_commented_settings_below_deploy_are_valid(tmp_path: Path):
    text = (ROOT / "deploy" / "mooring.yaml").read_text()
    file = tmp_path / "mooring.yaml"
    file.write_text(re.sub(r"^# ( *[\w-]+:(?: .*)?)$", r"\1", text, flags=re.MULTILINE))
    settings = load(file)
    assert settings.checks.enabled
    assert settings.alerts.webhook
    assert settings.tls
