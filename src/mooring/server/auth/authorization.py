"""Authorization: roles and scopes of principals, requirements of endpoints. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from mooring.messages import Message, message
from mooring.names import split_service

Role = Literal["viewer", "operator", "admin", "service"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin", "service")

_RANK = {"viewer": 1, "operator": 2, "admin": 3}

Within = Literal["anywhere", "group", "tenant", "everything"]
"""The scope in which a role must hold: any (lists show only what the caller may see), the group of
the service in the path, the tenant in the path, or everything."""


@dataclass(frozen=True, slots=True)
class Need:
    """What an endpoint requires of its caller."""

    roles: frozenset[Role] | None
    """One of these roles; None: no authentication."""
    within: Within = "anywhere"


def need(role: Role, within: Within = "anywhere") -> Need:
    """This role or a higher one."""
    if role == "service":
        return Need(frozenset({"service", "operator", "admin"}), within)
    return Need(
        frozenset(other for other in ROLES if _RANK.get(other, 0) >= _RANK[role]),
        within,
    )


OPEN = Need(None)
"""For endpoints without data: probes, the files of the console, login."""

READING = need("viewer")
DISCOVERING = Need(frozenset(ROLES), "group")
"""Discovery: also open to tokens of services."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    name: str
    """The name of the token, for the audit."""
    role: Role
    groups: frozenset[str] | None = None
    """The groups it is scoped to; None: all. See `scope`."""
    tenants: frozenset[int] | None = None
    token: str = ""
    """The id of the token behind it."""
    session: str = ""
    """The id of the browser's session; empty for a bearer of the token itself."""

    @property
    def unscoped(self) -> bool:
        return self.groups is None and self.tenants is None

    def sees_service(self, service: str) -> bool:
        return self.groups is None or split_service(service)[0] in self.groups

    def sees_tenant(self, tenant: int) -> bool:
        return self.tenants is None or tenant in self.tenants


def scope(
    groups: Collection[str], tenants: Collection[int]
) -> tuple[frozenset[str] | None, frozenset[int] | None]:
    """The groups and tenants of a principal. A token scoped to groups sees no tenants, and vice
    versa, unless both are given; a token without a scope sees everything."""
    if not groups and not tenants:
        return None, None
    return frozenset(groups), frozenset(tenants)


def objection(
    principal: Principal, wanted: Need, *, service: str = "", tenant: int | None = None
) -> Message | None:
    """Why a principal is not allowed; None if it is."""
    name, within = principal.name, wanted.within
    if wanted.roles is not None and principal.role not in wanted.roles:
        least = next((role for role in ROLES if role in wanted.roles), "admin")
        return message("role_insufficient", name=name, role=principal.role, needed=least)
    if within == "group" and not (service and principal.sees_service(service)):
        return message("outside_groups", name=name, service=service)
    if within == "tenant" and (tenant is None or not principal.sees_tenant(tenant)):
        return message("outside_tenants", name=name, tenant=tenant)
    if within == "everything" and not principal.unscoped:
        return message("scope_insufficient", name=name)
    return None
