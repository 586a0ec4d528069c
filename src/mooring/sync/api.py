"""Which types of the async API have blocking twins by name, for annotations and `isinstance`.

Everything else that such an object gives away is made blocking in the same way, namelessly. The
types that a type checker sees are in `__init__.pyi`, made from these by `tools/blocking_types.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

API: Mapping[str, str] = {
    "Hub": "mooring.hub",
    "Registration": "mooring.registry.registration",
    "View": "mooring.discovery.view",
    "Pick": "mooring.discovery.view",
    "RetryBudget": "mooring.discovery.resilience",
    "Registry": "mooring.registry.contract",
    "Store": "mooring.store.contract",
    "Watch": "mooring.store.contract",
    "Lock": "mooring.locks.lock",
    "Held": "mooring.locks.held",
    "ReadWriteLock": "mooring.locks.rwlock",
    "Semaphore": "mooring.locks.semaphore",
    "Election": "mooring.locks.election",
    "Campaign": "mooring.locks.election",
    "Leadership": "mooring.locks.election",
    "Leaders": "mooring.locks.election",
    "Barrier": "mooring.locks.barrier",
    "Provider": "mooring.tenants.read.provider",
    "Publisher": "mooring.tenants.publish.publisher",
    "Session": "mooring.session",
    "Mirror": "mooring.mirror",
}
"""Type by the module that it is in."""

INNER: frozenset[str] = frozenset(
    {
        "mooring.discovery.rotation.Rotation",
        "mooring.mirror.Feed",
        "mooring.registry.contract.InstanceFeed",
        "mooring.registry.contract.InstanceRecord",
        "mooring.registry.contract.LeaderLease",
        "mooring.registry.evictions.Evictions",
        "mooring.tenants.keys.Keys",
        "mooring.tenants.publish.retention.Sweeper",
    }
)
"""Types that can be reached from these, and are promised to nobody: what has to do with them has
no blocking types."""

SHARED: frozenset[str] = frozenset({"mooring.tenants.read.tenants.Tenants"})
"""Types that any thread reads by itself, without waiting: they have no stand-ins."""
