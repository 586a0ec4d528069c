"""Errors for services, groups and instances that a registry does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mooring.errors import InvalidRequest, NotFound
from mooring.messages import message
from mooring.names import closest
from mooring.registry.contract import Discovery, Registry


def service_not_found(service: str, known: Iterable[str]) -> NotFound:
    return NotFound(message("service_not_found", service=service, close=closest(service, known)))


def instance_not_found(service: str, id: str, known: Iterable[str]) -> NotFound:
    close = closest(id, known)
    return NotFound(message("instance_not_found", service=service, id=id, close=close))


async def require_service(
    registry: Registry, service: str, sees: Callable[[str], bool] = lambda _: True
) -> None:
    """Raise `NotFound` if a service has no instances, no description and no overrides. It suggests
    only services that the caller `sees`."""
    service = registry.canonical(service)
    try:
        known = await registry.names()
    except InvalidRequest:
        return  # a layout without a root cannot list its services
    if service not in known and not await registry.configured(service):
        raise service_not_found(service, filter(sees, known))


async def require_group(discovery: Discovery, group: str) -> None:
    """Raise `NotFound` if a group does not exist."""
    known = await discovery.groups()
    if group not in known:
        raise NotFound(message("group_not_found", group=group, close=closest(group, known)))
