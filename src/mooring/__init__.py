"""Service registry, discovery, locks and configuration on etcd, Redis or an embedded store."""

from mooring.discovery.resilience import Resilience
from mooring.errors import MooringError
from mooring.hub import Hub, connect
from mooring.model import Config, Group, Instance, Service, Status
from mooring.version import VERSION as __version__

__all__ = [
    "Config",
    "Group",
    "Hub",
    "Instance",
    "MooringError",
    "Resilience",
    "Service",
    "Status",
    "__version__",
    "connect",
]
