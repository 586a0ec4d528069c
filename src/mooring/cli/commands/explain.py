"""`mooring explain`: why each instance is or is not in rotation."""

from __future__ import annotations

from mooring.cli.io.connect import RegistryTarget, list_instances
from mooring.cli.io.options import (
    JSONOption,
    ServiceArgument,
    TagOption,
    VersionOption,
    ZoneOption,
    pairs,
)
from mooring.cli.io.streams import note
from mooring.cli.io.tables import show, yes_no
from mooring.discovery.exclusion import Selector
from mooring.discovery.resilience import Resilience
from mooring.discovery.rotation import explain as explain_rotation


async def explain(
    service: ServiceArgument,
    target: RegistryTarget,
    zone: ZoneOption = "",
    version: VersionOption = "",
    tag: TagOption = None,
    as_json: JSONOption = False,
) -> None:
    """Show why each instance is or is not in rotation."""
    selector = Selector(version, pairs("--tag", tag), zone)
    async with target.connect() as hub:
        instances = await list_instances(hub, service)
    if not instances:
        note(f"{service} has no instances")
    show(
        explain_rotation(instances, selector, Resilience()),
        {
            "id": lambda row: row.instance.id,
            "called": lambda row: yes_no(row.called),
            "why": lambda row: "; ".join(row.reasons) or "in rotation",
        },
        lambda row: {
            "service": row.instance.service,
            "id": row.instance.id,
            "called": row.called,
            "reasons": list(row.reasons),
        },
        as_json=as_json,
    )
