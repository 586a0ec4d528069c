"""`mooring tenant resolve`: whose a host, a code, a name, an FTP user or a request is."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.options import JSONOption, NamespaceOption, StoreOption
from mooring.cli.io.output import note, show_json
from mooring.errors import NotConfigured, TenantError
from mooring.formatting import quoted
from mooring.hub import Hub
from mooring.store.contract import key
from mooring.tenants.hosts import host_of
from mooring.tenants.keys import NAMESPACE, IndexKind, TenantKeys, is_id
from mooring.tenants.model import Resolver, UnreadableValue, decode, to_record
from mooring.tenants.parts import Parts, claims, stored_parts
from mooring.tenants.read.tenants import find
from mooring.tenants.resolver import REFUSED, TenantRejection, tenant_reference

By = Literal["id", "code", "host", "name", "ftp-user"]
_INDEXES: dict[By, IndexKind] = {
    "code": "by-code",
    "host": "host",
    "name": "by-name",
    "ftp-user": "ftp-user",
}


class Resolution(NamedTuple):
    tenant: int | None
    by: By | None
    name: str
    why: str
    status: str = ""


class TypedRequest(NamedTuple):
    """A request as it was typed."""

    path: str
    query: str
    headers: list[tuple[str, str]]

    def header(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name.lower()]


def resolve(
    host: Annotated[str, typer.Argument(metavar="HOST", help="shop.example.com")] = "",
    code: Annotated[str, typer.Option(metavar="CODE", help="in whatever case")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="in full")] = "",
    ftp_user: Annotated[str, typer.Option("--ftp-user", metavar="USER")] = "",
    url: Annotated[
        str, typer.Option(metavar="URL", help="a request, as the middleware would take it")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="a header of that request")
    ] = None,
    store: StoreOption = "",
    namespace: NamespaceOption = NAMESPACE,
    as_json: JSONOption = False,
) -> None:
    """Print the id of the tenant of a host, a code, a name, an FTP user or a request.

    Exits with 1 if there is none.
    """
    asked: dict[By, str] = {"host": host, "code": code, "name": name, "ftp-user": ftp_user}
    given = [(by, value) for by, value in asked.items() if value]
    request = _request(url, header or []) if url or header else None
    if len(given) + (request is not None) != 1:
        raise typer.BadParameter(
            "give one of HOST, --code, --name, --ftp-user, or --url with or without --header"
        )
    if host:
        known = host_of(host)
        if not known:
            raise typer.BadParameter(f"{quoted(host)} is no host", param_hint="HOST")
        given = [("host", known)]
    found = run_command(_resolve(given, request, TenantKeys(namespace), store))
    if as_json:
        show_json(
            {
                "tenant": found.tenant,
                "by": found.by,
                "name": found.name or None,
                "status": found.status or None,
                "why": found.why,
            }
        )
    if found.tenant is None:
        if as_json:
            raise typer.Exit(1)
        raise NotConfigured(found.why)
    if not as_json:
        typer.echo(str(found.tenant))
    if request is not None and found.status in REFUSED:
        note(f"tenant {found.tenant} is {found.status}: such a request is refused with 403")


def _request(url: str, headers: list[str]) -> TypedRequest:
    sent: list[tuple[str, str]] = []
    for text in headers:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{quoted(text)} is not NAME:VALUE", param_hint="--header")
        sent.append((name.strip(), value.strip()))
    try:
        where = urlsplit(url if "//" in url or not url else f"//{url}")
    except ValueError:
        raise typer.BadParameter(f"{quoted(url)} is no URL", param_hint="--url") from None
    if where.netloc and not any(name.lower() == "host" for name, _ in sent):
        sent.append(("Host", where.netloc.rpartition("@")[2]))
    return TypedRequest(unquote(where.path), where.query, sent)


async def _resolve(
    given: list[tuple[By, str]], request: TypedRequest | None, keys: TenantKeys, store: str
) -> Resolution:
    async with open_hub(store, "tree") as hub:
        if request is None:
            ((by, name),) = given
            return await _looked_up(hub, keys, by, name)
        resolver = await _resolver(hub, keys)
        named = tenant_reference(resolver, request)
        if isinstance(named, TenantRejection):
            return Resolution(None, None, "", f"{named.message} ({named.status})")
        return await _looked_up(hub, keys, named.by, named.name)


async def _resolver(hub: Hub, keys: TenantKeys) -> Resolver:
    path = "common/resolver"
    entry = (await hub.store.read(key(keys.common_part(path)))).first
    if entry is None:
        return Resolver()
    try:
        value = decode(path, entry.value)
        assert isinstance(value, dict)
        return to_record(Resolver, value)
    except UnreadableValue as error:
        raise TenantError(
            f"{path} cannot be understood, so that requests are turned away with 503 by whoever "
            f"never knew a good one: {error}"
        ) from None


async def _looked_up(hub: Hub, keys: TenantKeys, by: By, name: str) -> Resolution:
    what = f"{'FTP user' if by == 'ftp-user' else by} {quoted(name)}"
    if by == "id":
        parts = await _parts(hub, keys, int(name)) if is_id(name) else {}
        if "meta" not in parts:
            return Resolution(None, by, name, f"there is no tenant {name}")
        return Resolution(int(name), by, name, f"the {what}", _status(parts))
    kind = _INDEXES[by]
    tenant = await find(hub.store, keys, kind, name)
    place = keys.index(kind, name)
    if tenant is None:
        return Resolution(None, by, name, f"no tenant has the {what}: there is no {place.decode()}")
    parts = await _parts(hub, keys, tenant)
    if place not in claims(keys, tenant, parts):
        why = f"{place.decode()} leads to tenant {tenant}, which does not have the {what}"
        return Resolution(None, by, name, f"{why}: publish that tenant again")
    return Resolution(tenant, by, name, f"{place.decode()} leads to it", _status(parts))


async def _parts(hub: Hub, keys: TenantKeys, tenant: int) -> Parts:
    return stored_parts(keys, tenant, (await hub.store.read(keys.parts(tenant))).entries).parts


def _status(parts: Parts) -> str:
    meta = parts.get("meta")
    return str(meta.get("status") or "active") if isinstance(meta, dict) else ""
