"""The files of a TLS client, checked before a driver gets them: none of them says which is bad."""

from __future__ import annotations

import ssl
from pathlib import Path

from mooring.errors import InvalidURL


def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Python's own TLS with these files; raises `InvalidURL`, naming the one that is no good."""
    for name, path in (("ca", ca), ("cert", cert), ("key", key)):
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise InvalidURL(f"{name}={path} cannot be read: {error.strerror}") from error
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise InvalidURL(f"ca={ca} holds no certificate in PEM format") from error
    try:
        if cert:
            context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise InvalidURL(
            f"cert={cert} and key={key} are no certificate with its key in PEM format"
        ) from error
    return context
