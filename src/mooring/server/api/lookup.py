"""What a path names, as it is in the registry; or 404 with the name that was probably meant, among
those that the caller may see."""

from __future__ import annotations

from collections.abc import Iterable

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.model import Instance
from mooring.names import closest
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError
from mooring.store.contract import Store


def store_of(call: ApiCall) -> Store:
    """The store. Raises `HTTPError` (409) where there is Redis alone."""
    hub = call.server.hub
    try:
        return hub.store
    except InvalidRequest as error:
        raise HTTPError(409, "no_store", str(error)) from error


async def service_of(call: ApiCall) -> str:
    """The service that the path names, as it is written. Raises `HTTPError` (404) where nobody ever
    heard of it: it has no instances, no description, and no configuration."""
    registry = call.server.hub.registry
    service = registry.canonical(call.service)
    known = call.server.fleet.service(service)
    if known is not None and known.instances:
        return service
    try:
        names = await registry.names()
    except InvalidRequest:
        return service  # a layout without a root cannot tell which services there are
    if service in names:
        return service
    if registry.guarantees.describes and await registry.config(service):
        return service
    seen = [name for name in names if call.principal.sees_service(name)]
    raise not_found(f"there is no service {quoted(service)}", service, seen)


async def instance_of(call: ApiCall) -> Instance:
    """The instance that the path names. Raises `HTTPError` (404) where there is none."""
    registry = call.server.hub.registry
    service, id = registry.canonical(call.service), call.path["id"]
    listed = {each.id: each for each in (await registry.instances(service)).instances}
    if id in listed:
        return listed[id]
    known = call.server.fleet.service(service)  # one that is silent may still be shown
    if known is not None and id in known.instances:
        return known.instances[id]
    await service_of(call)
    raise not_found(f"{service} has no instance {quoted(id)}", id, listed)


def not_found(what: str, name: str, known: Iterable[str]) -> HTTPError:
    close = closest(name, known)
    meant = f": did you mean {quoted(close)}?" if close else ""
    return HTTPError(404, "not_found", f"{what}{meant}")
