"""Error replies of Redis are recognized in every version, within a script and outside."""

from __future__ import annotations

import pytest
from redis import exceptions as redis

from mooring.errors import AccessDenied, OutcomeUnknown, OutOfSpace, StoreError, Unavailable
from mooring.messages import message, verbatim
from mooring.registry.redis.errors import code_of, judge, kind_of, reason_of, refused, translate

BEAT = message("op_heartbeat", service="echo", id=None)
IN_62 = "Error running script (call to f_2248ea7f): @user_script:1: "
IN_70 = " script: 2248ea7f, on @user_script:1."
IN_90 = " script: on @user_script:1."


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [
        (f"{IN_62}WRONGTYPE Operation against a key", "WRONGTYPE", "final"),
        (f"WRONGTYPE Operation against a key{IN_70}", "WRONGTYPE", "final"),
        (f"{IN_62}@user_script: 1: -OOM command not allowed", "OOM", "final"),
        ("@user_script: 1: -OOM command not allowed\r\n", "OOM", "final"),
        (f"{IN_62}@user_script: 1: -NOREPLICAS Not enough", "NOREPLICAS", "elsewhere"),
        (f"NOREPLICAS Not enough good replicas to write.{IN_90}", "NOREPLICAS", "elsewhere"),
        (f"{IN_62}@user_script: 1: -READONLY You can't write", "READONLY", "elsewhere"),
        (f"{IN_62}@user_script: 1: -MISCONF Redis is configured", "MISCONF", "again"),
        ("BUSY Redis is busy running a script.", "BUSY", "again"),
        ("UNKILLABLE Sorry the script already executed", "UNKILLABLE", "elsewhere"),
        (f"{IN_62}@user_script: 1: The user executing the script can't run", "NOPERM", "final"),
        (f"The user executing the script can't run this command{IN_70}", "NOPERM", "final"),
        (f"ACL failure in script: User u has no permissions to run{IN_90}", "NOPERM", "final"),
        ("unknown command 'X'", "", "final"),
    ],
)
def test_an_error_is_recognized_within_a_script_and_outside(text: str, code: str, verdict: str):
    error = redis.ResponseError(text)
    assert code_of(error) == code
    assert judge(error) == verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (redis.TryAgainError("Multiple keys request during rehashing of slot"), "again"),
        (redis.ClusterDownError("The cluster is down"), "again"),
        (redis.MasterDownError("Link with MASTER is down"), "elsewhere"),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), "again"),
        (redis.ReadOnlyError("You can't write against a read only replica."), "elsewhere"),
        (redis.MovedError("1 127.0.0.1:7001"), "again"),
        (redis.AskError("1 127.0.0.1:7001"), "again"),
    ],
)
def test_an_error_whose_code_the_driver_removed_is_recognized(error: Exception, verdict: str):
    assert judge(error) == verdict


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.OutOfMemoryError("command not allowed"), OutOfSpace),
        (redis.ResponseError(f"{IN_62}@user_script: 1: -OOM command not allowed"), OutOfSpace),
        (
            redis.ResponseError(f"{IN_62}@user_script: 1: The user executing the script can't"),
            AccessDenied,
        ),
        (redis.AuthenticationError("invalid username-password pair"), AccessDenied),
        (redis.NoPermissionError("this user has no permissions"), AccessDenied),
        (redis.ConnectionError("Connection closed by server."), OutcomeUnknown),
        (redis.TimeoutError("no answer within 3 s"), OutcomeUnknown),
        (redis.ConnectionError("Error 111 connecting to 127.0.0.1:1."), Unavailable),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), Unavailable),
        (redis.ReadOnlyError("You can't write against a read only replica."), Unavailable),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), Unavailable),
        (redis.MasterDownError("Link with MASTER is down"), Unavailable),
        (redis.ClusterDownError("The cluster is down"), Unavailable),
        (redis.TryAgainError("Multiple keys request during rehashing of slot"), Unavailable),
        (redis.ResponseError("something else"), StoreError),
    ],
)
def test_an_error_becomes_one_of_ours(error: Exception, kind: type[StoreError]):
    translated = translate(error, what=BEAT, where="here:1", writes=True)
    assert type(translated) is kind
    assert "heartbeat of echo" in str(translated)
    assert "user_script" not in str(translated)


REFUSED = (
    "nothing listens at localhost:1 (connection refused). Check that the server runs and that the "
    "port is right"
)
UNREACHED = "localhost:1 cannot be reached: Name or service not known"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Error 111 connecting to localhost:1. Connection refused.", REFUSED),
        ("Error 111 connecting to localhost:1. Connect call failed ('127.0.0.1', 1).", REFUSED),
        (
            "Error Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
            "[Errno 111] Connect call failed ('127.0.0.1', 1) connecting to localhost:1.",
            REFUSED,
        ),
        ("Error -2 connecting to localhost:1. Name or service not known.", UNREACHED),
        (
            "Error 113 connecting to localhost:1. Connect call failed ('127.0.0.1', 1).",
            "localhost:1 cannot be reached: No route to host",
        ),
        (
            "Error 1 connecting to localhost:1. [SSL] wrong version number.",
            "localhost:1 cannot be reached: [SSL] wrong version number",
        ),
    ],
)
def test_a_failed_connection_is_reported_in_plain_words(text: str, words: str):
    error = redis.ConnectionError(text)
    translated = translate(error, what=BEAT, where="here", writes=True)
    assert type(translated) is Unavailable
    assert str(translated) == f"heartbeat of echo: here is not available: {words}"


def test_a_problem_that_we_raise_keeps_its_message():
    lost = redis.ConnectionError("Error 111 connecting to localhost:1. Refused.")
    error = redis.ConnectionError(message("redis_no_node", problem=reason_of(lost)))
    translated = translate(error, what=BEAT, where="here", writes=True)
    assert type(translated) is Unavailable
    assert translated.message == message(
        "store_unavailable",
        operation=BEAT,
        store=verbatim("here"),
        reason=message("redis_no_node", problem=message("endpoint_refused", address="localhost:1")),
    )


def test_a_wrong_key_is_named():
    translated = refused("WRONGTYPE Operation", what=BEAT, key="p:services:echo:instance:a")
    assert "p:services:echo:instance:a should be a hash" in str(translated)
    assert "delete it" in str(translated)


def test_the_kind_of_a_key_is_known_by_its_name():
    kinds = {name: kind_of(f"p:services:echo:{name}") for name in ("heartbeats", "config", "brake")}
    assert kinds == {"heartbeats": "zset", "config": "hash", "brake": "hash"}
    assert kind_of("p:services") == "set"
    assert kind_of("p:services:echo:instance:services") == "hash"
