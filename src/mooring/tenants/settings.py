"""What all tenants share, as it is to be written: how requests name a tenant, where the files of
tenants lie, and the configuration of the platform."""

from __future__ import annotations

from mooring.errors import InvalidRequest
from mooring.model import JSON
from mooring.tenants.keys import PLATFORM
from mooring.tenants.rules import EXTRA, FIELDS, checked_common


def merged_common(path: str, before: object, value: JSON) -> JSON:
    """A value as it is to be written over what is there. Fields that Mooring does not know stay as
    they are, unless `extra` says otherwise. Raises `InvalidRequest`."""
    if value is None:
        raise InvalidRequest(f"{path} must have a value: to remove it, unset it")
    fields = checked_common(path, value)
    if path.startswith(PLATFORM) or not isinstance(fields, dict):
        return fields
    held = before if isinstance(before, dict) else {}
    foreign = {name: inner for name, inner in held.items() if name not in FIELDS[path]}
    gone = _removed(value)
    return {name: inner for name, inner in (foreign | fields).items() if name not in gone}


def _removed(value: JSON) -> frozenset[str]:
    """Fields that Mooring does not know and that are to be removed."""
    extra = value.get(EXTRA) if isinstance(value, dict) else None
    named = extra.items() if isinstance(extra, dict) else ()
    return frozenset(name for name, inner in named if inner is None)
