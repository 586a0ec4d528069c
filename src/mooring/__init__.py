"""Service registry, discovery, locks and configuration on etcd, Redis or an embedded store."""

from mooring.errors import MooringError
from mooring.hub import Hub, connect

__all__ = ["Hub", "MooringError", "__version__", "connect"]

__version__ = "0.1.0.dev0"
