"""Service registry, discovery, locks and configuration on etcd, Redis or an embedded store."""

from mooring.discovery.resilience import Resilience
from mooring.errors import MooringError
from mooring.hub import Hub, connect
from mooring.model import Config, Group, Instance, Service, Status
from mooring.registry.registration import Registration
from mooring.registry.shutdown import until_stopped
from mooring.version import VERSION as __version__

__all__ = [
    "Config",
    "Group",
    "Hub",
    "Instance",
    "MooringError",
    "Registration",
    "Resilience",
    "Service",
    "Status",
    "__version__",
    "connect",
    "until_stopped",
]
