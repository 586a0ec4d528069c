"""Host names of tenants: one normal form for publishers, lookups and requests."""

from __future__ import annotations

import re
import unicodedata

MAX_LENGTH = 253
"""Characters of a host name."""

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_ADDRESS = re.compile(
    r"(?P<name>(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63})?\.?(?::[0-9]{0,5})?"
    r"|\[(?P<ipv6>[0-9a-f:.]+)\](?::[0-9]{0,5})?"
)
_MAX_AUTHORITY = MAX_LENGTH + len(".:65535")  # characters of a host with its port
_LABEL_CATEGORIES = ("L", "M", "N")  # letters, marks and numbers outside ASCII


def host_of(value: str) -> str | None:
    """The host in the text of a request, a user or an older publisher: in lower case and punycode,
    without port, brackets and trailing dot. Empty if there is none, None if it is invalid."""
    value = value.strip()
    if len(value) > _MAX_AUTHORITY:
        return None
    if not value.isascii():
        name, colon, port = value.partition(":")
        if not (encoded := punycode(name.removesuffix("."))):
            return None
        value = f"{encoded}{colon}{port}"
    match = _ADDRESS.fullmatch(value.lower())
    return (match["name"] or match["ipv6"] or "") if match else None


def normal(host: str) -> str:
    """The form in which a host of a tenant is looked up. An invalid host, which only other programs
    write, is only converted to lower case."""
    if host.isascii() and ":" not in host and not host.endswith("."):
        return host.lower()
    return host_of(host) or host.lower()


def is_host(value: str) -> bool:
    """Whether a publisher may write this host: ASCII, without port and trailing dot."""
    return len(value) <= MAX_LENGTH and all(_LABEL.fullmatch(label) for label in value.split("."))


def punycode(host: str) -> str:
    """The form in which requests have a host name outside ASCII; empty if it is invalid."""
    labels = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", host).lower()).split(".")
    host = ".".join(_encoded(label) for label in labels)
    return host if is_host(host) else ""


def _encoded(label: str) -> str:
    if label.isascii():
        return label
    if not all(
        letter.isascii() or unicodedata.category(letter)[0] in _LABEL_CATEGORIES for letter in label
    ):
        return ""
    return f"xn--{label.encode('punycode').decode()}"
