"""Who may do what. Pure: a principal has a role and a scope, an endpoint has a need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from mooring.names import split_service

Role = Literal["viewer", "operator", "admin", "service"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin", "service")

_RANK = {"viewer": 1, "operator": 2, "admin": 3}

Within = Literal["anywhere", "group", "tenant", "everything"]
"""Where a role must hold: nowhere in particular (a list, which shows only what the caller may see),
in the group of the service that the path names, for the tenant that it names, or everywhere."""


@dataclass(frozen=True, slots=True)
class Need:
    """What an endpoint asks of its caller."""

    roles: frozenset[Role] | None
    """One of these; None: nobody need say who it is."""
    within: Within = "anywhere"


def need(role: Role, within: Within = "anywhere") -> Need:
    """This role or a higher one."""
    if role == "service":
        return Need(frozenset({"service", "operator", "admin"}), within)
    return Need(
        frozenset(each for each in ROLES if _RANK.get(each, 0) >= _RANK[role]),
        within,
    )


OPEN = Need(None)
"""For the few that tell nothing: probes, the console's own files, the login."""

READING = need("viewer")
DISCOVERING = Need(frozenset(ROLES), "group")
"""The instances of a service, also for other services."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks."""

    name: str
    """For the audit: the token's name."""
    role: Role
    groups: frozenset[str] | None = None
    """The groups that it is scoped to; None: all. See `scope`."""
    tenants: frozenset[int] | None = None
    token: str = ""
    """The id of the token behind it."""
    session: str = ""
    """The id of the browser's session; empty for a bearer of the token itself."""

    def sees_service(self, service: str) -> bool:
        return self.groups is None or split_service(service)[0] in self.groups

    def sees_tenant(self, tenant: int) -> bool:
        return self.tenants is None or tenant in self.tenants


def scope(
    groups: Collection[str], tenants: Collection[int]
) -> tuple[frozenset[str] | None, frozenset[int] | None]:
    """The groups and tenants of a principal. Who is scoped to groups has no tenants, and the other
    way round, unless both are named; who is scoped to neither has all."""
    if not groups and not tenants:
        return None, None
    return frozenset(groups), frozenset(tenants)


def objection(
    principal: Principal, wanted: Need, *, service: str = "", tenant: int | None = None
) -> str:
    """Why a principal may not, in words; empty where it may."""
    if wanted.roles is not None and principal.role not in wanted.roles:
        least = next((each for each in ROLES if each in wanted.roles), "admin")
        article = "an" if principal.role[0] in "aeiou" else "a"
        return f"{principal.name} is {article} {principal.role}: this takes the role {least}"
    if wanted.within == "group" and not (service and principal.sees_service(service)):
        return f"{principal.name} may not touch {service or 'this'}: it is outside of its groups"
    if wanted.within == "tenant" and (tenant is None or not principal.sees_tenant(tenant)):
        return f"{principal.name} may not touch tenant {tenant}: it is outside of its tenants"
    if wanted.within == "everything" and not (
        principal.groups is None and principal.tenants is None
    ):
        return f"{principal.name} is scoped to some groups or tenants: this is about everything"
    return ""
