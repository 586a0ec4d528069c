"""The keys of the registry on Redis: every reader, writer and script has them from here.

    {p}:services                     Set    tier 1: the services that have instances
    {p}:services:{svc}:heartbeats    ZSet   tier 2: instances by their last heartbeat, in ms
    {p}:services:{svc}:instance:{id} Hash   tier 3: all about one instance
    {p}:services:{svc}:config        Hash   the operator's word: by id, of the service under ""
    {p}:services:{svc}:removed       ZSet   who was taken out, or left, by when that is forgotten
    {p}:services:{svc}:persistent    ZSet   as tier 2, of those that stay when they are silent
    {p}:services:{svc}:brake         Hash   there while expiry is paused, or was just released
    {p}:services:{svc}:evictions     String how many expired within the present interval
    {p}:services:{svc}:changes       channel
    {p}:alerts                       String what the webhook was told
    {p}:alerts:leader                String the server that calls the webhook, for its lease
    {p}:info                         Hash   descriptions: of services by name, of groups with a "/"

`{p}` is `[namespace:]prefix`. On a cluster the service stands in braces, so that all keys of one
service lie in one slot, and `{p}:alerts` does for the same reason.
"""

from __future__ import annotations

from mooring.errors import InvalidName, InvalidRequest
from mooring.formatting import quoted
from mooring.names import check_part, split_service


class Keys:
    def __init__(self, prefix: str = "registry", *, namespace: str = "", cluster: bool = False):
        self.prefix = f"{namespace}:{prefix}" if namespace else prefix
        if self.prefix.split(":")[-1] == "services":
            raise InvalidRequest(
                f"the prefix {quoted(self.prefix)} cannot end with 'services': its keys would "
                "look like those of another registry"
            )
        self.cluster = cluster
        self.services = f"{self.prefix}:services"
        self.info = f"{self.prefix}:info"
        self.alerts = f"{{{self.prefix}:alerts}}" if cluster else f"{self.prefix}:alerts"
        self.leader = f"{self.alerts}:leader"

    def of(self, service: str) -> ServiceKeys:
        """Those of one service. Raises `InvalidName` for one that cannot be here."""
        return ServiceKeys(self, check_service(service))

    def service_of(self, instance_key: str) -> tuple[str, str] | None:
        """Service and id of an instance's key; None where it is no such key."""
        start = f"{self.services}:"
        if not instance_key.startswith(start):
            return None
        service, separator, id = instance_key[len(start) :].partition(":instance:")
        if not separator or not id:
            return None
        if self.cluster:
            service = service.removeprefix("{").removesuffix("}")
        try:
            return check_service(service), id
        except InvalidName:
            return None


class ServiceKeys:
    def __init__(self, keys: Keys, service: str) -> None:
        self.name = service
        self.base = (
            f"{keys.services}:{{{service}}}" if keys.cluster else f"{keys.services}:{service}"
        )
        self.heartbeats = f"{self.base}:heartbeats"
        self.config = f"{self.base}:config"
        self.removed = f"{self.base}:removed"
        self.persistent = f"{self.base}:persistent"
        self.brake = f"{self.base}:brake"
        self.evictions = f"{self.base}:evictions"
        self.changes = f"{self.base}:changes"

    def instance(self, id: str) -> str:
        return f"{self.base}:instance:{id}"


def check_service(service: str) -> str:
    """The same name, or `InvalidName`: as everywhere, and without what tells keys apart."""
    group, name = split_service(service)
    check_part("group", group)
    check_part("service", name)
    if "{" in service or "}" in service:
        raise InvalidName(
            f"the service {quoted(service)} contains a brace, which would choose a slot on a "
            "cluster"
        )
    return service
