"""Tenant configuration: published atomically with its indexes, read from immutable snapshots."""

from mooring.tenants.context import acting_for, current, current_or_none

__all__ = ["acting_for", "current", "current_or_none"]
