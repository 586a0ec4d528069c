"""Secrets in clear text: for admins, and whoever asks for them is written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mooring.masking import masked_fields
from mooring.model import JSON
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response


class Unmasking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    unmask: bool = False
    """Secrets in clear text: for admins, and it is written into the audit."""


OPENED: Mapping[str, str] = {"Cache-Control": "no-store"}
"""Headers of an answer with secrets in clear text."""


def allow_unmasking(call: ApiCall) -> None:
    """Raises `HTTPError` (403). Whoever tries is written down."""
    call.notes["unmask"] = True
    allowed = may_unmask(call)
    call.server.audit.write(call, 200 if allowed else 403)
    if not allowed:
        raise HTTPError(
            403,
            "forbidden",
            f"{call.principal.name} may not see secrets: that takes the role admin",
        )


def may_unmask(call: ApiCall) -> bool:
    return call.principal.role == "admin"


def fields(told: Mapping[str, JSON]) -> dict[str, Any]:
    """Fields as everybody is shown them, who may see them at all."""
    return masked_fields(told)


def configuration(call: ApiCall, told: Mapping[str, JSON]) -> Response:
    """A configuration, as far as the caller may see it and asks for it."""
    if not call.query.unmask:
        return Response(fields(told))
    allow_unmasking(call)
    return Response(dict(told), headers=OPENED)
