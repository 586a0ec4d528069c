"""Which server is called, what follows a failure, and how calls are sent. [H4] [H5]"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hprose import HproseException, HproseService  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest, MooringError
from mooring.hprose.client import TcpTransport, repaired, transport
from mooring.hprose.failover import FailoverAction, Server, ServerPool, decide, is_transport_error
from tests.surroundings import has_ipv6

A, B, C = Server("a", "tcp://h:1/"), Server("b", "tcp://h:2/"), Server("c", "tcp://h:3/")
REFUSED = ConnectionRefusedError("nobody listens")

servers = st.sets(st.sampled_from([A, B, C]))


class TestServerPool:
    def test_the_first_primary_is_random(self):
        seen = set()
        for _ in range(200):
            pool = ServerPool()
            pool.update([A, B, C])
            seen.add(pool.primary)
        assert seen == {A, B, C}

    @given(st.lists(servers, min_size=1, max_size=10))
    def test_the_primary_changes_only_if_it_disappears(self, lists: list[set[Server]]):
        pool = ServerPool()
        for known in lists:
            before = pool.primary
            pool.update(known)
            if before in known:
                assert pool.primary == before
            else:
                assert pool.primary in known if known else pool.primary is None

    def test_a_changed_url_is_followed(self):
        pool = ServerPool()
        pool.update([A])
        moved = Server("a", "tcp://elsewhere:1/")
        pool.update([B, moved, C])
        assert pool.primary == moved

    @given(servers, servers, st.booleans())
    def test_a_failed_primary_is_replaced_by_one_that_did_not_fail(
        self, known: set[Server], failed: set[Server], moved: bool
    ):
        pool = ServerPool()
        pool.update(known)
        before = pool.primary
        after = pool.fail_over(failed)
        if known <= failed:
            assert after is None
            assert pool.primary == before
        else:
            assert after == pool.primary
            assert after in known - failed
            assert before in failed or after == before, "a primary that did not fail stays"


class TestDecide:
    @pytest.mark.parametrize(
        "error",
        [
            REFUSED,
            ConnectionResetError(),
            TimeoutError("timed out"),
            http.client.RemoteDisconnected("closed"),
            http.client.IncompleteRead(b""),
            http.client.BadStatusLine("?"),
            socket.gaierror(),
            EOFError(),
        ],
    )
    def test_transport_errors_are_retried_elsewhere(self, error: Exception):
        assert is_transport_error(error)
        decision = decide(error, servers=[A, B], failed={A}, tried=1, tries=10)
        assert decision is FailoverAction.NEXT

    @pytest.mark.parametrize(
        "error", [HproseException("boom"), ValueError(), TypeError(), MooringError("failed")]
    )
    @given(known=servers, failed=servers, tried=st.integers(1, 12))
    def test_errors_of_the_function_pass_through(
        self, error: Exception, known: set[Server], failed: set[Server], tried: int
    ):
        decision = decide(error, servers=known, failed=failed, tried=tried, tries=10)
        assert decision is FailoverAction.PASS_THROUGH

    def test_a_server_that_moved_is_a_different_server(self):
        moved = Server("a", "tcp://elsewhere:1/")
        assert (
            decide(REFUSED, servers=[moved], failed={A}, tried=1, tries=10) is FailoverAction.NEXT
        )

    def test_it_pauses_only_if_no_other_server_is_known(self):
        assert decide(REFUSED, servers=[A], failed={A}, tried=1, tries=10) is FailoverAction.PAUSE
        assert (
            decide(REFUSED, servers=[A, B], failed={A, B}, tried=2, tries=10)
            is FailoverAction.PAUSE
        )

    def test_the_last_try_is_the_last(self):
        assert decide(REFUSED, servers=[A, B], failed={A}, tried=9, tries=10) is FailoverAction.NEXT
        assert (
            decide(REFUSED, servers=[A, B], failed={A}, tried=10, tries=10)
            is FailoverAction.GIVE_UP
        )
        assert (
            decide(REFUSED, servers=[A, B], failed={A}, tried=1, tries=1) is FailoverAction.GIVE_UP
        )

    def test_an_empty_list_is_reported(self):
        assert (
            decide(REFUSED, servers=[], failed={A}, tried=1, tries=10) is FailoverAction.NO_SERVER
        )

    @given(servers, servers, st.integers(1, 12), st.integers(1, 10))
    def test_retries_always_end(
        self, known: set[Server], failed: set[Server], tried: int, tries: int
    ):
        decision = decide(REFUSED, servers=known, failed=failed, tried=tried, tries=tries)
        assert (decision is FailoverAction.GIVE_UP) == (tried >= tries)
        assert (decision is FailoverAction.NEXT) == (tried < tries and bool(known - failed))


class TestErrorsOfAServerOnPython3:
    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    def test_the_message_is_the_one_that_was_raised(self, message: str):
        service = HproseService()

        def fail() -> None:
            raise ValueError(message)

        service.addFunction(fail)
        answer = repaired(service._handle(b'Cs4"fail"z', None))
        length = len(message.encode("utf-16-le")) // 2
        assert answer == b'Es%d"%b"z' % (length, message.encode())

    @pytest.mark.parametrize(
        "answer",
        [
            b'Rs5"hello"z',
            b"z",
            b'Es5"hello"z',
            b"""Es7"b'hello'"z""",  # a wrong count of another kind
            b"""Es8"b'hello'"z""",  # a text with a correct count, including the quotes
            b"""Es2"b'\\x'"z""",
            b"""Es1"b'\\xff'"z""",
            b"""Es3"b'a' + b'c'"z""",
        ],
    )
    def test_all_other_answers_are_unchanged(self, answer: bytes):
        assert repaired(answer) == answer


def finish(connection: socket.socket) -> None:
    """Close without a reset: unread data would cause one."""
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass


@contextmanager
def answering(answer: Callable[[socket.socket], None], *, host: str = "127.0.0.1") -> Iterator[int]:
    """A port where each connection is handed to a function, and closed."""

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if stop.is_set():
                    return
                connection.recv(65536)
                answer(connection)
                finish(connection)

    stop = threading.Event()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        port: int = listener.getsockname()[1]
        try:
            yield port
        finally:
            stop.set()
            socket.create_connection((host, port)).close()
            thread.join()


class TestTransports:
    @pytest.mark.parametrize(
        "response",
        [
            b"",
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nRs5",
            b'HTTP/1.1 200 OK\r\n\r\nRs5"he',
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n<html>another service lives here</html>",
            b"SSH-2.0-OpenSSH_9.6\r\n",
        ],
    )
    def test_an_invalid_http_response_is_a_transport_error(self, response: bytes):
        with (
            answering(lambda connection: connection.sendall(response)) as port,
            pytest.raises((OSError, http.client.HTTPException)),
        ):
            transport(f"http://127.0.0.1:{port}/").invoke("hello")

    @pytest.mark.parametrize(
        "response", [b"", b"\0\0", b'\0\0\0\x09Rs5"', b"HTTP/1.1 400 Bad Request\r\n\r\n"]
    )
    def test_an_invalid_tcp_response_is_a_transport_error(self, response: bytes):
        with (
            answering(lambda connection: connection.sendall(response)) as port,
            pytest.raises(ConnectionError, match="closed the connection within a response"),
        ):
            transport(f"tcp://127.0.0.1:{port}/").invoke("hello")

    @pytest.mark.parametrize("scheme", ["http", "tcp"])
    def test_a_timeout_is_a_transport_error(self, scheme: str):
        done = threading.Event()

        def wait(_: socket.socket) -> None:
            done.wait(10)

        with answering(wait) as port:
            with pytest.raises(TimeoutError):
                transport(f"{scheme}://127.0.0.1:{port}/", timeout=0.2).invoke("hello")
            done.set()

    def test_the_path_the_query_and_headers_are_sent(self):
        seen: list[bytes] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    seen.append(connection.recv(65536))
                    connection.sendall(b'HTTP/1.0 200 OK\r\n\r\nRs2"ok"z')
                    finish(connection)

            thread = threading.Thread(target=serve)
            thread.start()
            client = transport(f"http://127.0.0.1:{port}/api/hprose?v=2")
            client.headers["X-Token"] = "t"
            assert client.invoke("hello") == "ok"
            thread.join()
        assert seen[0].startswith(b"POST /api/hprose?v=2 HTTP/1.1\r\n")
        assert b"X-Token: t\r\n" in seen[0]

    @pytest.mark.parametrize(
        ("scheme", "response"),
        [
            ("http", b'HTTP/1.0 200 OK\r\n\r\nRs2"ok"z'),
            ("tcp6", b'\0\0\0\x08Rs2"ok"z'),
            ("tcp", b'\0\0\0\x08Rs2"ok"z'),
        ],
    )
    @pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
    def test_an_ipv6_address_is_called(self, scheme: str, response: bytes):
        with answering(lambda connection: connection.sendall(response), host="::1") as port:
            assert transport(f"{scheme}://[::1]:{port}/").invoke("hello") == "ok"

    def test_tcp4_and_tcp6_keep_to_their_family(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(OSError, match=r"family|address|Name"):
                TcpTransport(f"tcp6://127.0.0.1:{port}/")._exchange(b"z")

    @pytest.mark.parametrize("url", ["ws://h:1/", "wss://h:1/", "h:1", ""])
    def test_an_unsupported_scheme_is_refused(self, url: str):
        with pytest.raises(InvalidRequest, match="cannot be called"):
            transport(url)


def test_without_hprose_the_extra_is_named():
    script = """
import sys
sys.modules["hprose"] = None
import mooring.hprose
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "pip install 'mooring[hprose]'" in run.stderr
