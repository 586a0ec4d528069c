"""WSGI: an application that is registered in the process that serves it (`registration`)."""

from mooring.wsgi.registration import Registered, registered

__all__ = ["Registered", "registered"]
