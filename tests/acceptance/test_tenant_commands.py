"""`mooring tenant` as users type it. No command shows a secret unless it is asked to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mooring.sync
from mooring.store import Put
from mooring.testing.etcd import EtcdServer, find_etcdctl
from mooring.testing.redis import RedisServer
from tests.acceptance.commands import Command, Done, in_terminal

KEY, OTHER_KEY = "k" * 32, "j" * 32
SECRETS = ("hunter2", "hunter3", "$2a$10$hash", "t0ken")

ACME = """\
id: 7
meta: {code: Acme, name: Acme 有限公司, billingPlan: enterprise}
domain: {primary: shop.example.com, aliases: [www.example.com], internal: shop.internal}
database:
  evidence-query:
    driver: mysql
    host: mysql-query
    database: acme_query
    username: acme
    password: hunter2
    extra: {accessToken: t0ken, pool: {size: 3}}
ftp:
  acme_ftp: {passwordHash: $2a$10$hash, homeDirectory: /tenants/7}
storage: {uploadQuotaGb: 1000}
"""


class Terminal:
    """Runs commands on one store, with files beside it."""

    def __init__(self, command: Command, url: str, folder: Path) -> None:
        self._command, self.url, self.folder = command, url, folder
        self.environment = {"MOORING_STORE": url, "MOORING_ENCRYPTION_KEY": KEY}
        self._printed: list[str] = []

    def file(self, text: str, name: str = "acme.yaml") -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def another(self) -> Terminal:
        """A terminal with another store."""
        return Terminal(self._command, f"sqlite://{self.folder}/elsewhere", self.folder)

    def try_out(self, *arguments: str, given: str = "", **environment: str) -> Done:
        settings = {**self.environment, **environment}
        done = self._command("tenant", *arguments, given=given, **settings)
        assert "Traceback" not in done.stderr, done.stderr
        if "--reveal" not in arguments:
            self._printed.append(done.stdout + done.stderr)
        return done

    def run(self, *arguments: str, code: int = 0, given: str = "", **environment: str) -> str:
        """The output of a command, which must end with this code."""
        done = self.try_out(*arguments, given=given, **environment)
        assert done.code == code, done.stdout + done.stderr
        return done.stdout

    def refused(self, *arguments: str, given: str = "", **environment: str) -> str:
        """The one line with which a command fails."""
        done = self.try_out(*arguments, given=given, **environment)
        assert done.code in (1, 2), done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        return line.removeprefix("mooring: ")

    def records(self, *arguments: str, code: int = 0) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).splitlines()]

    def interactive(self, answer: str, *arguments: str) -> tuple[int, str]:
        """Run it in a terminal and type an answer: the exit code, and the screen."""
        code, screen = in_terminal("tenant", *arguments, typed=f"{answer}\n", **self.environment)
        self._printed.append(screen)
        return code, screen

    def assert_no_secret_shown(self) -> None:
        printed = "".join(self._printed)
        for secret in SECRETS:
            assert secret not in printed


@pytest.fixture
def terminal(command: Command, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(command, f"sqlite://{tmp_path}/store", tmp_path)
    yield opened
    opened.assert_no_secret_shown()


@pytest.fixture
def acme(terminal: Terminal) -> Terminal:
    terminal.run("publish", terminal.file(ACME), "--by", "alice", "--note", "first")
    return terminal


class TestDiffAndPublish:
    def test_a_diff_shows_what_a_publish_would_change(self, terminal: Terminal):
        file = terminal.file(ACME)
        lines = terminal.run("diff", file, code=3).splitlines()
        assert lines[0] == "+ meta"
        assert '      name: "Acme 有限公司"' in lines
        assert "+ database/evidence-query" in lines
        assert "      passwordEncrypted: (sensitive value)" in lines
        assert '+ domain/primary: "shop.example.com"' in lines
        assert lines[-1] == "tenant 7: 7 to add, 0 to change, 0 to remove"
        assert terminal.run("list") == ""
        published = terminal.run("publish", file).splitlines()
        assert published[:-1] == lines[:-1]
        assert published[-1] == "tenant 7: 7 added, 0 changed, 0 removed (version 1)"
        assert terminal.run("diff", file) == "tenant 7: nothing to change\n"
        assert terminal.run("publish", file) == "tenant 7: nothing to change\n"

    def test_a_diff_names_the_fields_but_no_secrets(self, acme: Terminal):
        changed = (
            ACME.replace("enterprise", "free")
            .replace("hunter2", "hunter3")
            .replace("acme_ftp", "bob")
            .replace("size: 3", "size: 4")
        )
        printed = acme.run("diff", "-", code=3, given=changed)
        assert printed.splitlines() == [
            '~ meta.billingPlan: "enterprise" → "free"',
            "~ database/evidence-query.pool.size: 3 → 4",
            "~ database/evidence-query.passwordEncrypted: (sensitive value changes)",
            "- ftp/acme_ftp",
            "+ ftp/bob",
            "      passwordHash: (sensitive value)",
            '      homeDirectory: "/tenants/7"',
            "tenant 7: 1 to add, 2 to change, 1 to remove",
        ]
        file = acme.file(changed, "changed.yaml")
        (record,) = acme.records("diff", file, code=3)
        (published,) = acme.records("publish", file)
        assert record["changes"] == published["changes"]
        assert (published["tenant"], published["number"], published["transactions"]) == (7, 2, 1)
        changes = published["changes"]
        assert isinstance(changes, list)
        assert [(change["path"], change["action"]) for change in changes] == [
            ("meta", "change"),
            ("database/evidence-query", "change"),
            ("ftp/acme_ftp", "remove"),
            ("ftp/bob", "add"),
        ]
        assert changes[1]["sensitive"] == ["passwordEncrypted"]
        assert changes[1]["after"]["accessToken"] == "••••••"

    def test_a_taken_name_is_refused_with_its_holder(self, acme: Terminal):
        other = acme.file("id: 8\nmeta: {code: acme, name: Other}\n", "other.yaml")
        for command in ("diff", "publish"):
            message = acme.refused(command, other)
            assert message == "tenant 8: the code 'acme' belongs to tenant 7 already"
        assert len(acme.run("list").splitlines()) == 1

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("id: 7\nmeta: {code: a, nme: b}", "unknown field 'nme', did you mean 'name'?"),
            ("id: 7\nftp: {a: {passwordHash: 5}}", "ftp/a.passwordHash must be text"),
            ("id: 7\nftp: {a: {passwordHash: *hunter2}}", "line 2, column 25"),
            ("", "must be a map with id"),
        ],
    )
    def test_an_invalid_file_is_one_line(self, terminal: Terminal, text: str, complaint: str):
        message = terminal.refused("publish", "-", given=text)
        assert message.startswith("standard input: ")
        assert complaint in message

    def test_an_invalid_file_prevents_publishing_the_others(self, terminal: Terminal):
        folder = terminal.folder / "tenants"
        folder.mkdir()
        for number in range(1, 4):
            text = f"id: {number}\nmeta: {{code: c{number}, name: n{number}}}\n"
            (folder / f"{number}.yaml").write_text(text)
        (folder / "README").write_text("not a tenant")
        wrong = terminal.file("id: 5\nmeta: {code: c5}\n", "wrong.yaml")
        message = terminal.refused("publish", str(folder), wrong)
        assert message.startswith(f"{wrong}: ")
        twice = terminal.file("id: 2\n", "twice.yaml")
        assert "tenant 2" in terminal.refused("publish", str(folder), twice)
        assert terminal.run("list") == ""
        lines = terminal.run("publish", str(folder)).splitlines()
        assert [line for line in lines if line.startswith("tenant")] == [
            f"tenant {number}: 1 added, 0 changed, 0 removed (version 1)" for number in (1, 2, 3)
        ]

    def test_the_file_that_fails_is_named(self, acme: Terminal):
        taken = acme.file("id: 1\nmeta: {code: acme, name: n1}\n", "taken.yaml")
        good = acme.file("id: 2\nmeta: {code: c2, name: n2}\n", "good.yaml")
        done = acme.try_out("publish", taken, good)
        assert done.code == 1
        assert f"mooring: {taken}: tenant 1: the code 'acme' belongs to tenant 7" in done.stderr
        assert done.stdout.splitlines()[-1].startswith("tenant 2: 1 added")

    def test_a_publish_reports_several_transactions(self, terminal: Terminal):
        users = "".join(f"  user{number}: {{}}\n" for number in range(200))
        file = terminal.file(f"id: 1\nmeta: {{code: c, name: n}}\nftp:\n{users}")
        done = terminal.try_out("publish", file, "--json")
        assert done.code == 0
        assert "too large for one transaction, written in" in done.stderr
        assert json.loads(done.stdout)["transactions"] > 1


class TestManyTenants:
    @pytest.mark.parametrize("name", ["all.yaml", "all.jsonl"])
    def test_publishing_an_export_again_changes_nothing(self, acme: Terminal, name: str):
        acme.run(
            "publish", "-", given="id: 10\nmeta: {code: ten, name: Ten}\nstorage: {extra: {a: 1}}"
        )
        file = acme.folder / name
        done = acme.try_out("export", str(file))
        assert (done.code, done.stdout) == (0, "")
        assert done.stderr.startswith("2 tenants\n")
        assert "has 1 secret in clear text" in done.stderr, "accessToken"
        assert file.stat().st_mode & 0o777 == 0o600
        assert "hunter2" not in file.read_text()
        assert "passwordEncrypted" in file.read_text()
        for key in (KEY, ""):
            lines = acme.run("publish", str(file), MOORING_ENCRYPTION_KEY=key).splitlines()
            assert lines == ["tenant 7: nothing to change", "tenant 10: nothing to change"]
        elsewhere = acme.another()
        elsewhere.run("publish", str(file), MOORING_ENCRYPTION_KEY="")
        again = acme.folder / f"again-{name}"
        elsewhere.run("export", str(again), MOORING_ENCRYPTION_KEY="")
        assert again.read_text() == file.read_text()
        revealed = elsewhere.run("show", "7", "--reveal")
        assert "hunter2" in revealed

    def test_an_export_counts_the_secrets_in_clear_text(self, acme: Terminal):
        database = "{driver: mysql, host: h, port: 1, database: d, password: open1}"
        extra = "{apiToken: open2, url: 'https://u:open3@h'}"
        file = f"id: 8\nmeta: {{code: c, name: n, extra: {extra}}}\ndatabase: {{a: {database}}}\n"
        elsewhere = acme.another()
        elsewhere.run("publish", "-", given=file, MOORING_ENCRYPTION_KEY="")
        done = elsewhere.try_out("export", "-")
        assert done.code == 0
        assert all(f"open{n}" in done.stdout for n in (1, 2, 3))
        assert done.stderr == (
            "1 tenant\nmooring: warning: the export has 3 secrets in clear text, as stored: keep "
            "it safe\n"
        )

    def test_selected_tenants_are_exported_to_standard_output(self, acme: Terminal):
        acme.run("publish", "-", given="id: 1\nmeta: {code: one, name: One}\n")
        assert acme.run("export", "--tenant", "1", "--json") == (
            '{"id": 1, "meta": {"status": "active", "code": "one", "name": "One"}}\n'
        )
        assert acme.run("export", "--tenant", "1", "-").startswith("---\nid: 1\nmeta:\n")
        assert acme.refused("export", "--tenant", "2") == "tenant 2 not found"

    def test_an_unreadable_part_is_reported(self, acme: Terminal):
        with mooring.sync.connect(acme.url) as hub:
            hub.store.commit(Put(b"jxt/tenants/7/storage", b"{oops"))
        done = acme.try_out("export", str(acme.folder / "all.yaml"))
        assert done.code == 1
        assert done.stderr.startswith("1 tenant\n")
        assert "storage cannot be parsed and is omitted" in done.stderr

    def test_of_many_tenants_in_a_file_one_failure_stops_no_other(self, acme: Terminal):
        documents = [
            f"id: {n}\nmeta: {{code: {'acme' if n == 50 else f'c{n}'}, name: n{n}}}\n"
            for n in range(20, 80)
        ]
        file = acme.file("---\n".join(documents), "many.yaml")
        done = acme.try_out("publish", file)
        assert done.code == 1
        assert done.stderr == (
            f"mooring: {file}, document 31: "
            "tenant 50: the code 'acme' belongs to tenant 7 already\n"
        )
        results = [line for line in done.stdout.splitlines() if line.startswith("tenant")]
        assert results == [
            f"tenant {n}: 1 added, 0 changed, 0 removed (version 1)"
            for n in range(20, 80)
            if n != 50
        ]
        assert len(acme.run("list").splitlines()) == 60

    def test_a_host_can_move_between_two_tenants_in_either_order(self, terminal: Terminal):
        def both(one: str, two: str) -> str:
            first = f"id: 1\nmeta: {{code: a, name: A}}\ndomain: {one}\n"
            return f"{first}---\nid: 2\nmeta: {{code: b, name: B}}\ndomain: {two}\n"

        host = "{primary: a.example}"
        terminal.run("publish", "-", given=both(host, "{}"))
        assert "tenant 2: 1 added" in terminal.run("publish", "-", given=both("{}", host))
        assert "tenant 1: 1 added" in terminal.run("publish", "-", given=both(host, "{}"))

    def test_a_dry_run_writes_nothing(self, acme: Terminal):
        changed = acme.file(ACME.replace("enterprise", "free"), "changed.yaml")
        assert acme.run("publish", "--dry-run", changed).splitlines() == [
            '~ meta.billingPlan: "enterprise" → "free"',
            "tenant 7: 0 to add, 1 to change, 0 to remove",
        ]
        assert acme.run("diff", acme.file(ACME)) == "tenant 7: nothing to change\n"
        taken = acme.file("id: 8\nmeta: {code: acme, name: x}\n", "taken.yaml")
        assert "belongs to tenant 7" in acme.refused("publish", "--dry-run", taken)

    def test_a_base_protects_concurrent_changes(self, acme: Terminal):
        (shown,) = acme.records("show", "7")
        base = str(shown["revision"])
        assert acme.run("show", "7", "--yaml").splitlines()[0] == f"# revision: {base}"
        changed = acme.file(ACME.replace("enterprise", "free"), "changed.yaml")
        acme.run("publish", "--base", base, changed)
        for arguments in (
            ("publish", "--base", base, acme.file(ACME)),
            ("publish", "--dry-run", "--base", base, acme.file(ACME)),
            ("rollback", "7", "1", "--yes", "--base", base),
            ("delete", "7", "--yes", "--base", base),
        ):
            done = acme.try_out(*arguments)
            assert done.code == 1
            assert f"tenant 7: changed since revision {base}" in done.stderr
        many = acme.file("id: 1\n---\nid: 2\n", "many.yaml")
        assert acme.try_out("publish", "--base", base, many).code == 2
        (shown,) = acme.records("show", "7")
        acme.run("delete", "7", "--yes", "--base", str(shown["revision"]))


class TestShared:
    """What all tenants share."""

    def test_common_settings_are_set_shown_and_rolled_back(self, terminal: Terminal):
        assert terminal.run("common", "get") == ""
        printed = terminal.run("common", "set", "resolver", '{"httpType": "host"}', "--by", "alice")
        assert printed.splitlines() == [
            "+ common/resolver",
            '      httpType: "host"',
            "common settings: 1 added, 0 changed, 0 removed (version 1)",
        ]
        terminal.run("common", "set", "resolver", "{httpType: path, httpPathIndex: 1}")
        assert json.loads(terminal.run("common", "get", "resolver")) == {
            "httpType": "path",
            "httpPathIndex": 1,
        }
        assert "health\t" in terminal.run("common", "get")
        first = terminal.run("common", "history").splitlines()[0].split("\t")
        assert (first[0], first[2], first[4]) == ("1", "alice", "common/resolver")
        assert '~ common/resolver.httpType: "host" → "path"' in terminal.run(
            "common", "history", "2"
        )
        assert "--yes" in terminal.refused("common", "rollback", "1")
        done = terminal.try_out("common", "rollback", "1", "--yes")
        assert done.stdout.splitlines()[-1] == "common settings: 0 to add, 1 to change, 0 to remove"
        assert done.stderr == "mooring: common settings: restored version 1 as version 3\n"
        assert json.loads(terminal.run("common", "get", "resolver")) == {"httpType": "host"}
        assert "1 removed (version 4)" in terminal.run("common", "unset", "resolver")
        assert terminal.refused("common", "unset", "resolver") == "common/resolver not found"

    def test_invalid_values_are_refused(self, terminal: Terminal):
        for arguments, complaint in (
            (("common", "set", "resolver", "{htpType: host}"), "did you mean 'httpType'"),
            (("common", "set", "resolverr", "{}"), "common/resolverr"),
            (("common", "set", "health", "{}"), "common beat"),
            (("platform", "set", "mail", "{a: "), "VALUE: not YAML"),
            (("platform", "set", "mail", "{password: ••••••}"), "masked"),
            (("platform", "set", "mail", ""), "must have a value"),
        ):
            done = terminal.try_out(*arguments)
            assert done.code == 2, done.stderr
            assert complaint in done.stderr
        assert terminal.run("common", "history") == ""

    def test_platform_settings_keep_their_secrets(self, terminal: Terminal):
        mail = '{"host": "mx", "password": "hunter2"}'
        terminal.run("platform", "set", "mail", "-", given=mail, code=0)
        assert (
            terminal.run("platform", "set", "mail", mail)
            == "platform settings: nothing to change\n"
        )
        dry = terminal.run(
            "platform", "set", "mail", '{"host": "mx2", "password": "hunter3"}', "--dry-run"
        )
        assert dry.splitlines()[-1] == "platform settings: 0 to add, 1 to change, 0 to remove"
        assert "(sensitive value changes)" in dry
        (record,) = terminal.records("platform", "get")
        assert record["values"] == {"mail": {"host": "mx", "password": "••••••"}}
        terminal.run("platform", "set", "mail", "3", "--base", str(record["revision"]))
        for arguments in (
            ("unset", "mail"),
            ("set", "mail", "4"),
            ("set", "mail", "4", "--dry-run"),
            ("rollback", "1", "--yes"),
        ):
            done = terminal.try_out("platform", *arguments, "--base", str(record["revision"]))
            assert done.code == 1
            assert f"platform settings: changed since revision {record['revision']}" in done.stderr
        terminal.run("platform", "rollback", "1", "--yes")
        assert "hunter2" in terminal.run("platform", "get", "mail", "--reveal")
        assert terminal.run("common", "get") != ""

    def test_the_value_of_a_key_with_the_name_of_a_secret_is_secret(self, terminal: Terminal):
        key = ("platform", "set", "smtp-password")
        printed = [
            terminal.run(*key, "hunter2"),
            terminal.run("platform", "get"),
            terminal.run("platform", "get", "smtp-password"),
            terminal.run(*key, "hunter3", "--dry-run"),
            terminal.run(*key, "{pin: hunter3}"),
            terminal.run("platform", "history", "1"),
            terminal.run("platform", "history", "2"),
            terminal.run("platform", "history", "--json"),
            terminal.run("platform", "rollback", "1", "--yes"),
            terminal.run("platform", "rollback", "0", "--yes"),
        ]
        assert not any("hunter" in text for text in printed), printed
        assert "platform/configs/smtp-password: (sensitive value changes)" in printed[3]
        terminal.run(*key, "hunter2")
        assert "hunter2" in terminal.run("platform", "get", "--reveal")

    def test_the_health_sentinel_can_be_written(self, terminal: Terminal):
        terminal.run("common", "beat")
        assert "updatedAt" in terminal.run("common", "get", "health")
        assert "next publish" in terminal.try_out("common", "unset", "health").stderr
        assert terminal.run("common", "get") == ""
        assert terminal.refused("common", "unset", "health") == "_health/sentinel not found"


class TestShow:
    def test_tenants_are_listed_by_id(self, acme: Terminal):
        for number, status in ((10, "suspended"), (1, "active")):
            text = f"id: {number}\nmeta: {{code: c{number}, name: n{number}, status: {status}}}\n"
            acme.run("publish", "-", given=text)
        lines = [line.split("\t") for line in acme.run("list").splitlines()]
        assert lines == [
            ["1", "c1", "n1", "active", "-", "0", "0"],
            ["7", "Acme", "Acme 有限公司", "active", "shop.example.com", "1", "1"],
            ["10", "c10", "n10", "suspended", "-", "0", "0"],
        ]
        (record,) = acme.records("list", "--status", "suspended")
        assert record == {
            "id": 10,
            "code": "c10",
            "name": "n10",
            "status": "suspended",
            "primaryDomain": None,
            "databases": 0,
            "ftpUsers": 0,
        }
        assert acme.run("list", "--namespace", "elsewhere") == ""

    def test_an_empty_part_is_shown(self, terminal: Terminal):
        with mooring.sync.connect(terminal.url) as hub:
            hub.store.commit(Put(b"jxt/tenants/3/storage", b"{}"))
        assert terminal.run("show", "3").splitlines() == ["storage\t-\t{}"]

    def test_secrets_are_shown_only_on_request(self, acme: Terminal):
        lines = acme.run("show", "7").splitlines()
        assert lines[0].split("\t")[0] == "meta"
        assert "database/evidence-query\tpasswordEncrypted\t••••••" in lines
        assert "ftp/acme_ftp\tpasswordHash\t••••••" in lines
        assert "domain/primary\t-\tshop.example.com" in lines
        done = acme.try_out("show", "7", "--reveal", "--json")
        record = json.loads(done.stdout)
        assert record["database"]["evidence-query"]["password"] == "hunter2"
        assert record["ftp"]["acme_ftp"]["passwordHash"] == "$2a$10$hash"
        assert record["id"] == record["meta"]["id"] == 7
        assert done.stderr == "mooring: tenant 7: its secrets are shown in clear text\n"
        for key in (OTHER_KEY, ""):
            done = acme.try_out("show", "7", "--reveal", MOORING_ENCRYPTION_KEY=key)
            assert done.code == 1
            assert "evidence-query: a password is encrypted" in done.stderr
            assert "hunter2" not in done.stdout

    def test_the_yaml_output_can_be_published_again(self, acme: Terminal):
        text = acme.run("show", "7", "--yaml")
        assert "Acme 有限公司" in text
        assert acme.run("diff", "-", given=text) == "tenant 7: nothing to change\n"
        changed = text.replace("enterprise", "free")
        printed = acme.run("publish", "-", given=changed)
        assert printed.splitlines()[0] == '~ meta.billingPlan: "enterprise" → "free"'
        revealed = acme.try_out("show", "7", "--reveal").stdout
        assert "hunter2" in revealed
        assert "t0ken" in revealed

    def test_hostile_text_is_harmless_in_a_terminal(self, terminal: Terminal):
        """Any program may have written it into the store."""
        name = "\x1b]0;owned\x07\u202eevil\nline\x9b2J"
        meta = {"code": name, "name": name, "status": name, "\x1b[2Jfield": name}
        with mooring.sync.connect(terminal.url) as hub:
            hub.store.commit(
                Put(b"jxt/tenants/3/meta", json.dumps(meta).encode()),
                Put(b"jxt/tenants/3/ftp/\x1b[31mred", json.dumps({"description": name}).encode()),
                Put(b"jxt/tenants/3/database/broken", b"\x1b[2J{"),
                Put(b"jxt/tenants/3/\x1b[2Jforeign", b""),
            )
        commands = [["list"], ["show", "3"], ["show", "3", "--yaml"], ["delete", "3", "--yes"]]
        for arguments in [*commands, ["history", "3"], ["history", "3", "1"]]:
            done = terminal.try_out(*arguments)
            assert done.code == 0, done.stderr
            for letter in ("\x1b", "\x07", "\u202e", "\x9b"):
                assert letter not in done.stdout + done.stderr, arguments
            if arguments == ["list"]:
                assert len(done.stdout.splitlines()) == 1
                assert "database/broken cannot be parsed: not JSON" in done.stderr

    def test_a_tenant_is_found_by_any_of_its_names(self, acme: Terminal):
        for arguments in (
            ["SHOP.example.com:8443"],
            ["shop.internal"],
            ["--code", "acme"],
            ["--name", "Acme 有限公司"],
            ["--ftp-user", "acme_ftp"],
            ["--header", "X-Tenant-ID: 7"],
            ["--url", "https://shop/path", "--header", "x-tenant-id: ACME"],
        ):
            assert acme.run("resolve", *arguments) == "7\n", arguments
        (record,) = acme.records("resolve", "www.example.com")
        assert record == {
            "tenant": 7,
            "by": "host",
            "name": "www.example.com",
            "status": "active",
            "why": "jxt/tenants/_index/host/www.example.com leads to it",
        }
        assert "no tenant has the code 'x'" in acme.refused("resolve", "--code", "x")
        assert "is missing" in acme.refused("resolve", "--url", "http://shop.example.com/")
        (record,) = acme.records("resolve", "other.example.com", code=1)
        assert record["tenant"] is None
        assert acme.try_out("resolve").code == 2
        assert acme.try_out("resolve", "a.b", "--code", "c").code == 2

    def test_a_request_is_resolved_with_the_stored_resolver(self, acme: Terminal):
        with mooring.sync.connect(acme.url) as hub:
            publisher = hub.publisher()
            publisher.put_common("common/resolver", {"httpType": "path", "httpPathIndex": 1})
            publisher.put(7, "meta", {"code": "acme", "name": "Acme", "status": "suspended"})
        done = acme.try_out("resolve", "--url", "http://any/v1/ACME/orders?x=1")
        assert done.stdout == "7\n"
        assert "tenant 7 is suspended: such a request is refused with 403" in done.stderr

    def test_a_stale_index_finds_no_tenant(self, acme: Terminal):
        with mooring.sync.connect(acme.url) as hub:
            orphan = b"jxt/tenants/_index/host/orphan.example.com"
            hub.store.commit(Put(orphan, b'{"tenantId": 7}'))
        message = acme.refused("resolve", "orphan.example.com")
        assert "leads to tenant 7, which does not have the host" in message


class TestHistoryAndDeletion:
    def test_the_history_names_the_author_and_the_changes(self, acme: Terminal):
        acme.run("publish", "-", given=ACME.replace("enterprise", "free").replace("er2", "er3"))
        first, second = (line.split("\t") for line in acme.run("history", "7").splitlines())
        assert (first[0], first[2], first[3], first[5]) == ("1", "alice", "publish", "first")
        assert second[4] == "meta, database/evidence-query"
        assert acme.run("history", "7", "2").splitlines() == [
            '~ meta.billingPlan: "enterprise" → "free"',
            "~ database/evidence-query.passwordEncrypted: (sensitive value changes)",
        ]
        records = acme.records("history", "7")
        assert [record["number"] for record in records] == [1, 2]
        assert acme.records("history", "7", "2") == records[1:]
        assert "(available: 1 to 2)" in acme.refused("history", "7", "9")
        assert "tenant 9 not found" in acme.refused("history", "9")

    def test_a_history_can_be_purged(self, acme: Terminal):
        acme.run("publish", "-", given=ACME.replace("enterprise", "free"))
        assert acme.run("history", "--purge") == "0 entries deleted\n"
        assert "Confirm with --yes" in acme.refused("history", "7", "--purge")
        assert acme.run("history", "7", "--purge", "--yes") == "1 entry deleted\n"
        acme.run("delete", "7", "--yes")
        assert acme.records("history", "7", "--purge", "--yes") == [{"tenant": 7, "entries": 2}]
        assert "tenant 7 not found" in acme.refused("history", "7")

    def test_an_unchanged_secret_is_not_listed_as_changed(self, acme: Terminal):
        """In a history it is sealed again each time."""
        acme.run("publish", "-", given=ACME.replace("/tenants/7", "/home/7"))
        expected = '~ ftp/acme_ftp.homeDirectory: "/tenants/7" → "/home/7"\n'
        assert acme.run("history", "7", "2") == expected
        without = acme.run("history", "7", "2", MOORING_ENCRYPTION_KEY=OTHER_KEY)
        assert "ftp/acme_ftp.passwordHash: (sensitive value, which may have changed" in without

    def test_a_rollback_restores_a_deleted_tenant(self, acme: Terminal):
        before = acme.try_out("show", "7", "--reveal").stdout
        message = acme.refused("delete", "7")
        assert message == (
            'Delete tenant 7 (Acme, "Acme 有限公司") with its 7 parts, including 1 database and 1 '
            "FTP user? Confirm with --yes: standard input is not a terminal"
        )
        done = acme.try_out("delete", "7", "--yes", "--note", "gone")
        assert done.code == 0
        assert done.stderr == "mooring: to undo: mooring tenant rollback 7 1\n"
        assert done.stdout.splitlines()[-1] == "tenant 7: 0 added, 0 changed, 7 removed (version 2)"
        assert acme.refused("show", "7") == "tenant 7 not found"
        assert acme.refused("delete", "7", "--yes") == "tenant 7 not found"
        acme.refused("resolve", "shop.example.com")
        assert acme.run("history", "7").splitlines()[1].split("\t")[3] == "delete"
        assert "Confirm with --yes" in acme.try_out("rollback", "7", "1").stderr
        shown = acme.run("rollback", "7", "1", "--yes").splitlines()
        assert shown[-1] == "tenant 7: 7 to add, 0 to change, 0 to remove"
        assert acme.try_out("show", "7", "--reveal").stdout == before
        assert acme.run("resolve", "shop.example.com") == "7\n"
        assert "nothing to change" in acme.run("rollback", "7", "3")
        assert "(available: 0 to 3)" in acme.refused("rollback", "7", "8", "--yes")

    def test_a_terminal_asks_for_confirmation(self, acme: Terminal):
        code, screen = acme.interactive("n", "delete", "7")
        assert code == 1
        assert "Delete tenant 7" in screen
        assert "nothing was changed" in screen
        assert acme.run("resolve", "--code", "acme") == "7\n"
        code, screen = acme.interactive("y", "delete", "7")
        assert code == 0, screen
        assert "\x1b[31m-\x1b[0m meta" in screen
        assert acme.run("list") == ""
        code, screen = acme.interactive("y", "rollback", "7", "1")
        assert code == 0, screen
        assert "\x1b[32m+\x1b[0m meta" in screen
        assert acme.run("resolve", "--code", "acme") == "7\n"

    def test_deleting_without_a_key_names_what_no_rollback_restores(self, acme: Terminal):
        done = acme.try_out("delete", "7", "--yes", MOORING_ENCRYPTION_KEY="")
        assert "has secrets that no rollback restores" in done.stderr

    def test_rekey_encrypts_passwords_with_another_key(self, acme: Terminal):
        assert "there is no key to encrypt with" in acme.refused("rekey", MOORING_ENCRYPTION_KEY="")
        done = acme.try_out("rekey", MOORING_ENCRYPTION_KEY=OTHER_KEY)
        assert done.code == 1
        assert (
            "tenant 7: database/evidence-query: a password is encrypted with the key" in done.stderr
        )
        acme.environment |= {
            "MOORING_ENCRYPTION_KEY": OTHER_KEY,
            "MOORING_FORMER_ENCRYPTION_KEYS": KEY,
        }
        (record,) = acme.records("rekey")
        assert record == {"tenants": 1, "entries": 2, "problems": []}
        del acme.environment["MOORING_FORMER_ENCRYPTION_KEYS"]
        assert "hunter2" in acme.run("show", "7", "--reveal")
        acme.run("delete", "7", "--yes")
        acme.run("rollback", "7", "2", "--yes")
        assert "$2a$10$hash" in acme.run("show", "7", "--reveal")


class TestStoreAndKey:
    def test_a_redis_as_the_store_is_refused(
        self, terminal: Terminal, redis: Callable[[str], RedisServer]
    ):
        url = redis("7.0").url
        for arguments in (["list"], ["publish", terminal.file(ACME)], ["resolve", "a.b"]):
            message = terminal.refused(*arguments, MOORING_STORE=url)
            assert "contains only a registry: locks, tenants" in message

    def test_an_unavailable_store_and_an_invalid_key_are_reported(self, terminal: Terminal):
        message = terminal.refused("list", MOORING_STORE="etcd://127.0.0.1:1?timeout=1s")
        assert "nothing listens at 127.0.0.1:1" in message
        message = terminal.refused("publish", terminal.file(ACME), MOORING_ENCRYPTION_KEY="t0ken")
        assert "MOORING_ENCRYPTION_KEY is not a key of 32 bytes" in message
        assert terminal.try_out("show", "0").code == 2

    @pytest.mark.parametrize(
        "backend",
        [
            "etcd-3.5",
            pytest.param("etcd-3.4", marks=pytest.mark.extended("etcd 3.5 finds the same keys")),
            "served",
        ],
    )
    def test_the_documented_queries_of_etcdctl_find_published_tenants(
        self,
        command: Command,
        backend: str,
        etcd: Callable[[str], EtcdServer],
        served: Callable[[], str],
        tmp_path: Path,
    ):
        """The patterns of the document of the key format, except for the namespace."""
        url = served() if backend == "served" else etcd(backend.removeprefix("etcd-")).url
        namespace = f"jxt-{tmp_path.name}"
        terminal = Terminal(command, url, tmp_path)
        terminal.environment["MOORING_TENANTS_NAMESPACE"] = namespace
        sales = ACME.replace("id: 7", "id: 1").replace(
            "storage:", "  sales_ftp: {}\n  meta: {}\nstorage:"
        )
        terminal.run("publish", terminal.file(sales))
        terminal.run("publish", "-", given="id: 10\nmeta: {code: ten, name: Ten}\nftp: {ten: {}}\n")

        def etcdctl(*arguments: str) -> list[str]:
            program = find_etcdctl("3.4" if backend == "etcd-3.4" else "3.5")
            done = subprocess.run(
                [program, f"--endpoints={url.removeprefix('etcd://')}", *arguments],
                env={**os.environ, "ETCDCTL_API": "3"},
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            )
            return [line.removeprefix(f"{namespace}/") for line in done.stdout.splitlines() if line]

        def values_below(prefix: str) -> dict[str, str]:
            lines = etcdctl("get", f"{namespace}/{prefix}", "--prefix")
            return dict(zip(lines[::2], lines[1::2], strict=True))

        everything = values_below("tenants/1/")
        assert list(everything) == [
            "tenants/1/database/evidence-query",
            "tenants/1/domain/aliases",
            "tenants/1/domain/internal",
            "tenants/1/domain/primary",
            "tenants/1/ftp/acme_ftp",
            "tenants/1/ftp/meta",
            "tenants/1/ftp/sales_ftp",
            "tenants/1/meta",
            "tenants/1/storage",
        ]
        assert everything["tenants/1/domain/primary"] == "shop.example.com"
        assert json.loads(everything["tenants/1/domain/aliases"]) == ["www.example.com"]
        assert json.loads(everything["tenants/1/meta"]) == {
            "id": 1,
            "code": "Acme",
            "name": "Acme 有限公司",
            "status": "active",
            "billingPlan": "enterprise",
        }
        users = values_below("tenants/1/ftp/")
        assert [json.loads(value)["username"] for value in users.values()] == [
            "acme_ftp",
            "meta",
            "sales_ftp",
        ]
        ((path, database),) = values_below("tenants/1/database/").items()
        assert path == "tenants/1/database/evidence-query"
        assert json.loads(database)["serviceCode"] == "evidence-query"
        assert "hunter2" not in database
        index = values_below("tenants/_index/")
        assert {path: json.loads(value) for path, value in index.items()} == {
            "tenants/_index/by-code/acme": {"id": 1, "code": "Acme", "name": "Acme 有限公司"},
            "tenants/_index/by-code/ten": {"id": 10, "code": "ten", "name": "Ten"},
            "tenants/_index/by-name/Acme%20%E6%9C%89%E9%99%90%E5%85%AC%E5%8F%B8": {
                "id": 1,
                "code": "Acme",
                "primaryDomain": "shop.example.com",
            },
            "tenants/_index/by-name/Ten": {"id": 10, "code": "ten", "primaryDomain": ""},
            **{
                f"tenants/_index/ftp-user/{user}": {
                    "tenantId": 1,
                    "code": "Acme",
                    "name": "Acme 有限公司",
                }
                for user in ("acme_ftp", "meta", "sales_ftp")
            },
            "tenants/_index/ftp-user/ten": {"tenantId": 10, "code": "ten", "name": "Ten"},
            **{
                f"tenants/_index/host/{host}": {
                    "tenantId": 1,
                    "code": "Acme",
                    "hostType": "internal" if host == "shop.internal" else "frontend",
                }
                for host in ("shop.example.com", "shop.internal", "www.example.com")
            },
        }
        terminal.run("delete", "1", "--yes")
        assert values_below("tenants/1/") == {}
        assert list(values_below("tenants/10/")) == ["tenants/10/ftp/ten", "tenants/10/meta"]
        assert all(
            json.loads(value).get("code") == "ten" for value in values_below("tenants/_").values()
        )
        terminal.assert_no_secret_shown()
