"""The Redis servers of mooring.testing: each one starts, answers, stops and restarts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.testing.redis import (
    CommandFailed,
    RedisCluster,
    RedisServer,
    SentinelGroup,
    Tls,
    find_redis,
)
from mooring.testing.servers import ProgramNotFound
from tests.waiting import until

SERIES = ("6.2", "7.0", "valkey-9")

failing_over = pytest.mark.parametrize(
    "series",
    [
        "7.0",
        *(
            pytest.param(series, marks=pytest.mark.extended("the commands are those of 7.0"))
            for series in ("6.2", "valkey-9")
        ),
    ],
)


@pytest.mark.parametrize("series", SERIES)
def test_a_shared_server_has_the_wanted_series(redis: Callable[[str], RedisServer], series: str):
    server = redis(series)
    assert redis(series) is server
    info = server.command("INFO", "server")
    assert isinstance(info, str)
    version = f"valkey_version:{series[7:]}." if series[:1] == "v" else f"redis_version:{series}."
    assert version in info


def test_a_killed_server_restarts_empty_on_its_port(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    url = server.url
    server.command("SET", "a", "1")
    server.kill()
    assert not server.running
    with pytest.raises(ConnectionRefusedError):
        server.command("PING")
    server.start()
    assert server.url == url
    assert server.command("GET", "a") is None


def test_a_persistent_server_keeps_confirmed_writes(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis(persistent=True)
    server.command("SET", "a", "1")
    server.kill()
    server.start()
    assert server.command("INCR", "a") == 2
    server.stop()
    assert not server.running
    server.start()
    assert server.command("GET", "a") == "2"


def test_a_paused_server_answers_when_it_is_resumed(
    fresh_redis: Callable[..., RedisServer],
):
    server = fresh_redis()
    server.pause()
    with pytest.raises(TimeoutError):
        server.command("PING", within=0.1)
    server.resume()
    assert server.command("PING") == "PONG"


def test_a_paused_server_can_be_stopped(fresh_redis: Callable[..., RedisServer]):
    server = fresh_redis()
    server.pause()
    server.stop()
    assert not server.running


def test_replies_are_text_numbers_lists_none_or_errors(redis: Callable[[str], RedisServer]):
    command = redis("7.0").command
    script = "return {'one', 2, {}, false}"
    assert command("EVAL", script, 0) == ["one", 2, [], None]
    assert command("ECHO", b"a\r\n\xff") == "a\r\n\udcff"
    with pytest.raises(CommandFailed, match="unknown command"):
        command("NONSENSE")


@pytest.mark.parametrize("ask_clients", [False, True])
def test_a_server_speaks_tls(
    fresh_redis: Callable[..., RedisServer], certificates: Path, ask_clients: bool
):
    tls = Tls(
        certificates / "server.pem",
        certificates / "server.key",
        certificates / "ca.pem",
        ask_clients=ask_clients,
    )
    server = fresh_redis(series="7.0", tls=tls)
    assert server.url == f"rediss://{server.address}"
    assert server.command("PING") == "PONG"


def test_flags_go_to_the_server(fresh_redis: Callable[..., RedisServer]):
    server = fresh_redis(flags=["--maxmemory", "10mb"])
    assert server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", str(10 << 20)]


def test_the_error_for_a_missing_server_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramNotFound, match=r"^Redis 7\.0 is not installed: make tools"):
        find_redis("7.0")


def test_every_key_of_the_shared_cluster_has_a_master(redis_cluster: RedisCluster):
    assert redis_cluster.settled()
    masters = {redis_cluster.master_of(key) for key in "abcdefgh"}
    assert masters == set(redis_cluster.members)
    for key in "abcdefgh":
        assert redis_cluster.master_of(key).command("SET", f"{{{key}}}:shared", "1") == "OK"
    assert redis_cluster.url.count(",") == 2


def wait_for_replicas(master: RedisServer, number: int) -> None:
    """Wait until this number of replicas has the previous writes. WAIT reports that only to the
    connection that wrote, and each command has its own."""

    def info() -> str:
        return str(master.command("INFO", "replication"))

    written = int(re.findall(r"master_repl_offset:(\d+)", info())[0])
    offset = r"slave\d+:.*offset=(\d+)"
    until(lambda: sum(int(got) >= written for got in re.findall(offset, info())) >= number)


@failing_over
def test_a_cluster_gives_the_slots_of_a_killed_master_to_its_replica(tmp_path: Path, series: str):
    with RedisCluster(tmp_path, replicas=1, series=series) as cluster:
        cluster.start()
        killed = cluster.master_of("a")
        killed.command("SET", "a", "1")
        wait_for_replicas(killed, 1)
        killed.kill()
        assert not cluster.settled()
        cluster.settle()
        successor = cluster.master_of("a")
        assert successor is not killed
        assert successor.command("GET", "a") == "1"
        killed.start()
        cluster.settle()
        assert cluster.master_of("a") is successor


def test_the_shared_sentinels_know_their_master(redis_sentinel: SentinelGroup):
    assert redis_sentinel.settled()
    assert redis_sentinel.master() is redis_sentinel.servers[0]
    assert redis_sentinel.url.startswith("redis+sentinel://127.0.0.1:")
    assert redis_sentinel.url.endswith("/mymaster")


@failing_over
def test_sentinels_replace_a_killed_master(tmp_path: Path, series: str):
    with SentinelGroup(tmp_path, replicas=2, series=series) as group:
        group.start()
        group.master().command("SET", "a", "1")
        wait_for_replicas(group.master(), 2)
        killed = group.kill_master()
        assert not group.settled()
        group.settle()
        assert group.master() is not killed
        assert group.master().command("GET", "a") == "1"
        assert group.master().command("SET", "a", "2") == "OK"
