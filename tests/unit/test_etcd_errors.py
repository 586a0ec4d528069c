"""Every kind of failure is classified, and its message names the key and what to do."""

from __future__ import annotations

import grpc
import pytest

from mooring.errors import AccessDenied, OutcomeUnknown, OutOfSpace, TooLarge, Unavailable
from mooring.messages import message, verbatim
from mooring.store.etcd.errors import Verdict, judge, translate

Code = grpc.StatusCode

CASES = [
    (Code.UNAVAILABLE, "failed to connect to all addresses; last error: x", Verdict.RETRY),
    (Code.UNAVAILABLE, "etcdserver: no leader", Verdict.RETRY),
    (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Verdict.RETRY),
    (Code.UNAVAILABLE, "etcdserver: request timed out", Verdict.LOST),
    (Code.UNAVAILABLE, "etcdserver: leader changed", Verdict.LOST),
    (Code.UNAVAILABLE, "Socket closed", Verdict.LOST),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.LOST),
    (Code.CANCELLED, "CANCELLED", Verdict.LOST),
    (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.LOGIN),
    (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Verdict.LOGIN),
    (Code.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.FINAL),
    (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Verdict.FINAL),
    (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Verdict.FINAL),
]


@pytest.mark.parametrize(("code", "text", "verdict"), CASES)
def test_whether_a_failed_call_may_be_retried(code: grpc.StatusCode, text: str, verdict: Verdict):
    assert judge(code, text) is verdict


@pytest.mark.parametrize(
    ("code", "text", "writes", "error"),
    [
        (Code.UNAVAILABLE, "Socket closed", True, OutcomeUnknown),
        (Code.UNAVAILABLE, "Socket closed", False, Unavailable),
        (Code.UNAVAILABLE, "failed to connect to all addresses", True, Unavailable),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", True, AccessDenied),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", True, OutOfSpace),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", True, TooLarge),
    ],
)
def test_the_error_that_a_failure_becomes(code, text, writes, error):
    what, where = message("op_commit", key="/a", more=None), verbatim("h:2379")
    made = translate(code, text, where=where, what=what, writes=writes)
    assert type(made) is error
    assert "/a" in str(made)
    assert "h:2379" in str(made)


def test_the_reason_of_a_failure_is_a_message_of_its_own():
    what, where = message("op_read", key="/a"), verbatim("h:2379")
    lost = translate(Code.UNAVAILABLE, "Socket closed", where=where, what=what, writes=True)
    reason = verbatim("Socket closed")
    assert lost.message == message("store_reply_lost", operation=what, store=where, reason=reason)
    silent = translate(Code.UNAVAILABLE, "", where=where, what=what, writes=False)
    assert silent.message.params["reason"] == message("no_reason_given")
