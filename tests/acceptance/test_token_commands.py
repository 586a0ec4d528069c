"""`mooring token` and `mooring login` on the machine of the server, as its operator types them."""

from __future__ import annotations

import http.server
import json
import os
import signal
import stat
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from mooring.testing.servers import free_port
from tests.acceptance.commands import mooring_command
from tests.acceptance.serving import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with Served("memory://", "--etcd=off", folder=folder) as started:
        yield started


def command(
    served: Served, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return mooring_command(*arguments, XDG_DATA_HOME=str(served.folder), **environment)


def whoami(served: Served, token: str) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://{served.http}/admin/whoami", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        principal: dict[str, object] = json.load(answer)
        return principal


def test_the_first_start_creates_an_admin_token_and_prints_a_link(served: Served):
    token = served.data / "admin-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert served.login.startswith(f"http://{served.http}/login?code=")
    assert served.admin_token not in "\n".join(served.lines)
    assert whoami(served, served.admin_token)["role"] == "admin"


def test_a_token_is_created_listed_and_revoked(served: Served):
    scope = ["--group", "Common", "--group", "Shop", "--tenant", "7"]
    made = command(served, "token", "create", "ann", "--role", "viewer", *scope, "--expires", "30d")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert "shown only once" in made.stderr
    assert token not in made.stderr
    principal = whoami(served, token)
    assert (principal["name"], principal["groups"], principal["tenants"]) == (
        "ann",
        ["Common", "Shop"],
        [7],
    )
    lines = command(served, "token", "list").stdout
    (line,) = [line.split("\t") for line in lines.splitlines() if "\tann\t" in line]
    assert line[2:5] == ["viewer", "Common, Shop, tenant 7", "valid"]
    assert token not in lines
    done = command(served, "token", "revoke", line[0])
    assert done.returncode == 0, done.stderr
    states = {
        listed["id"]: listed["state"]
        for listed in map(
            json.loads, command(served, "token", "list", "--json").stdout.splitlines()
        )
    }
    assert states[line[0]] == "revoked"
    assert states["admin"] == "valid"


def test_the_json_output_of_a_new_token_is_complete(served: Served):
    made = command(served, "token", "create", "ci", "--role=service", "--expires=never", "--json")
    token = json.loads(made.stdout)
    assert (token["name"], token["role"], token["expires"]) == ("ci", "service", None)
    assert whoami(served, token["token"])["role"] == "service"


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["create", "ann", "--role", "boss"], "use viewer, operator, admin, service", 2),
        (["create", "ann", "--role", "viewer", "--expires", "soon"], "duration", 2),
        (["create", "ann", "--role", "viewer", "--group", "a/b"], "slash", 2),
        (["create", "", "--role", "viewer"], "name", 2),
        (["revoke", "nothing"], "token 'nothing' not found", 1),
        (["revoke", "../audit"], "token '../audit' not found", 1),
        (["revoke", "admin"], "admin-token", 1),
    ],
)
def test_an_error_is_one_line(served: Served, arguments: list[str], message: str, code: int):
    done = command(served, "token", *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_login_prints_a_new_link(served: Served):
    done = command(served, "login")
    assert done.returncode == 0, done.stderr
    (link,) = done.stdout.splitlines()
    assert link.startswith(f"http://{served.http}/login?code=")
    assert link != served.login
    request = urllib.request.Request(
        link, data=b"", method="POST", headers={"Origin": f"http://{served.http}"}
    )
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(request, timeout=60) as answer:
        assert answer.url == f"http://{served.http}/"


def test_the_token_can_come_from_the_environment(served: Served):
    made = command(served, "token", "create", "eve", "--role", "viewer")
    token = made.stdout.strip()
    done = command(served, "token", "list", MOORING_TOKEN=token)
    assert done.returncode == 1
    assert "eve has the role viewer" in done.stderr
    assert command(served, "login", MOORING_TOKEN=token).returncode == 0
    done = command(served, "token", "list", MOORING_TOKEN="wrong")
    assert "does not know the token" in done.stderr


def test_the_data_folder_can_be_named(tmp_path: Path):
    with Served("memory://", "--etcd=off", f"--data={tmp_path}/elsewhere") as served:
        done = mooring_command("token", "list", f"--data={tmp_path}/elsewhere", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["id"] == "admin"
        assert not served.data.exists()
        url = f"http://{served.http}"
        done = mooring_command("login", MOORING_SERVER=url, MOORING_DATA=f"{tmp_path}/elsewhere")
        assert done.stdout.startswith(url)
        served.signal(signal.SIGTERM)
        assert served.end() == 0
    done = mooring_command("login", f"--data={tmp_path}/elsewhere")
    assert done.returncode == 1
    assert "no server runs with the folder" in done.stderr


def test_a_killed_server_is_reported(tmp_path: Path):
    with Served("memory://", "--etcd=off", folder=tmp_path) as served:
        served.signal(signal.SIGKILL)
        served.end()
        done = command(served, "login")
    assert done.returncode == 1
    assert "has ended" in done.stderr
    assert "mooring serve" in done.stderr


def test_the_error_without_a_server_explains_how_to_start_one(tmp_path: Path):
    for arguments in (["login"], ["token", "list"]):
        done = mooring_command(*arguments, XDG_DATA_HOME=str(tmp_path))
        assert done.returncode == 1
        assert "mooring serve" in done.stderr
    unreachable = f"http://127.0.0.1:{free_port()}"
    done = mooring_command("login", f"--server={unreachable}", MOORING_TOKEN="x")
    assert done.returncode == 1
    assert f"no server answers at {unreachable}" in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_admin_token_is_sent_to_no_other_machine(served: Served):
    done = command(served, "token", "list", "--server=https://mooring.example")
    assert done.returncode == 2
    assert "set MOORING_TOKEN" in done.stderr
    done = command(served, "token", "list", "--server=http://192.0.2.1:7480", MOORING_TOKEN="x")
    assert done.returncode == 2
    assert "--insecure" in done.stderr


@pytest.mark.parametrize(
    "server", ["nonsense", "ftp://h", "http://", "http://h/path", "http://a:b@h", "http://h:x"]
)
def test_an_invalid_server_is_refused(server: str):
    done = mooring_command("login", f"--server={server}", MOORING_TOKEN="x")
    assert done.returncode == 2
    assert "is not a server" in done.stderr


class Redirecting(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(307)
        self.send_header("Location", f"http://127.0.0.1:{self.server.elsewhere}/stolen")  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def redirecting() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        server.elsewhere = server.server_port  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_redirect_is_not_followed():
    with redirecting() as url:
        done = mooring_command("login", f"--server={url}", MOORING_TOKEN="x")
    assert done.returncode == 1
    assert "answers 307" in done.stderr


def test_the_certificate_is_verified(tmp_path: Path, certificates: Path):
    config = tmp_path / "config"
    config.write_text(
        f"store: memory://\netcd: off\ntls:\n  cert: {certificates}/server.pem\n"
        f"  key: {certificates}/server.key\n"
    )
    with Served("", f"--config={config}", folder=tmp_path) as served:
        assert served.login.startswith(f"https://{served.http}/login?code=")
        refused = command(served, "login")
        assert refused.returncode == 1
        assert "--ca FILE" in refused.stderr
        refused = command(served, "login", f"--ca={certificates}/other-ca.pem")
        assert refused.returncode == 1
        assert f"was not issued by {certificates}/other-ca.pem" in refused.stderr
        assert "--ca" not in refused.stderr
        done = command(served, "login", f"--ca={certificates}/ca.pem")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("https://")
        assert "contains no certificate" in command(served, "login", f"--ca={config}").stderr


def issued(folder: Path, *identities: str) -> trustme.CA:
    """Create `server.pem` and `server.key` for these names, and `ca.pem`, the authority."""
    authority = trustme.CA()
    made = authority.issue_cert(*identities)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    made.private_key_pem.write_to_path(str(folder / "server.key"))
    made.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    return authority


@pytest.mark.parametrize(
    ("hosts", "name"), [("", "mooring.test"), ("hosts: [first.test, mooring.test]\n", "first.test")]
)
def test_the_server_is_verified_by_a_name_of_its_certificate_at_any_address(
    tmp_path: Path, hosts: str, name: str
):
    issued(tmp_path, "mooring.test", "first.test")
    config = tmp_path / "config"
    config.write_text(
        f"store: memory://\netcd: off\nhttp: 0.0.0.0:{(port := free_port())}\n{hosts}tls:\n"
        f"  cert: {tmp_path}/server.pem\n  key: {tmp_path}/server.key\n"
    )
    with Served("", f"--config={config}", f"--http=0.0.0.0:{port}", folder=tmp_path) as served:
        assert served.login.startswith(f"https://{name}:{port}/login?code=")
        # That name cannot be resolved: the address is that of this machine, and still verified.
        done = command(served, "login", f"--ca={tmp_path}/ca.pem")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"https://{name}:{port}/login?code=")
        elsewhere = f"--server=https://127.0.0.1:{port}"
        done = command(served, "login", elsewhere, f"--ca={tmp_path}/ca.pem", MOORING_TOKEN="x")
        assert done.returncode == 1
        assert "is for another name" in done.stderr
        assert "--ca" not in done.stderr


def test_a_client_certificate_is_sent_on_request(tmp_path: Path, certificates: Path):
    config = tmp_path / "config"
    config.write_text(
        f"store: memory://\netcd: off\ntls:\n  cert: {certificates}/server.pem\n"
        f"  key: {certificates}/server.key\n  client_ca: {certificates}/ca.pem\n"
    )
    trust = f"--ca={certificates}/ca.pem"
    with Served("", f"--config={config}", folder=tmp_path) as served:
        refused = command(served, "login", trust)
        assert refused.returncode == 1
        assert "--cert FILE --key FILE" in refused.stderr
        own = [f"--cert={certificates}/client.pem", f"--key={certificates}/client.key"]
        done = command(served, "login", trust, *own)
        assert done.returncode == 0, done.stderr
        environment = {
            "MOORING_CA": f"{certificates}/ca.pem",
            "MOORING_CERT": f"{certificates}/client.pem",
            "MOORING_KEY": f"{certificates}/client.key",
        }
        assert command(served, "token", "list", **environment).returncode == 0
        done = command(served, "login", trust, own[0], f"--key={certificates}/server.key")
        assert done.returncode == 2
        assert "are not a certificate with its key" in done.stderr
        done = command(served, "login", trust, own[1])
        assert "name that with --cert" in done.stderr


def test_an_unusable_folder_is_reported_before_the_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    serve = ["serve", "--store=memory://", "--etcd=off", "--http=127.0.0.1:0"]
    done = mooring_command(*serve, f"--data={tmp_path}/file/data")
    assert done.returncode == 2
    assert "--data" in done.stderr
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    done = mooring_command(*serve, f"--data={open_to_all}")
    assert done.returncode == 2
    assert "chmod 700" in done.stderr


def test_without_the_console_no_link_is_printed(tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("store: memory://\netcd: off\nconsole: off\n")
    with Served("", f"--config={config}", folder=tmp_path) as served:
        assert not any(line.startswith("console") for line in served.lines)
        assert command(served, "token", "list").returncode == 0
        done = command(served, "login")
        assert done.returncode == 1
        assert "the console of this server is disabled" in done.stderr
