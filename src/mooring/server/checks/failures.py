"""What went wrong with a probe, in our own words."""

from __future__ import annotations

import ssl

from mooring.durations import show

_CERTIFICATES = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    62: "its certificate is for another name",
    64: "its certificate is for another address",
}
"""By the codes of OpenSSL."""


class Unhealthy(Exception):
    """A target answered, and not as one that is well does; the message says how."""


def in_words(error: BaseException, *, timeout: float) -> str:
    """The failure that an error means. Nothing of what a remote sent is in it."""
    match error:
        case Unhealthy():
            return str(error)
        case TimeoutError():
            return f"no answer within {show(timeout)}"
        case ssl.SSLCertVerificationError():
            untrusted = "its certificate is not signed by an authority that is trusted here"
            return _CERTIFICATES.get(error.verify_code, untrusted)
        case ssl.SSLError():
            return "it does not speak TLS as it should"
        case ConnectionRefusedError():
            return "it refused the connection"
        case ConnectionError() | EOFError():
            return "it broke the connection off"
        case _:
            return "it cannot be reached"
