"""ASGI: an application that is registered while it serves.

`registration` keeps it registered; `protocol` has the types.
"""

from mooring.asgi.protocol import Application, Message, Receive, Scope, Send
from mooring.asgi.registration import GRACE, App, Lifespan, Serving, State, lifespan, registered

__all__ = [
    "GRACE",
    "App",
    "Application",
    "Lifespan",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "Serving",
    "State",
    "lifespan",
    "registered",
]
