"""Host names of tenants: one normal form for publishers, lookups and requests."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 253
"""Characters of a host name."""

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_ADDRESS = re.compile(
    r"(?P<name>(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63})?\.?(?::[0-9]{0,5})?"
    r"|\[(?P<ipv6>[0-9a-f:.]+)\](?::[0-9]{0,5})?"
)
_AUTHORITY = LONGEST + len(".:65535")  # characters of a host with its port
_IN_LABELS = ("L", "M", "N")  # categories of characters outside ASCII: letters, marks, numbers


def host_of(value: str) -> str | None:
    """The host in what a request, a user or an older publisher wrote: in lower case and punycode,
    without port, brackets and trailing dot. Empty if there is none, None if it is invalid."""
    value = value.strip()
    if len(value) > _AUTHORITY:
        return None
    if not value.isascii():
        name, colon, port = value.partition(":")
        if not (written := punycode(name.removesuffix("."))):
            return None
        value = f"{written}{colon}{port}"
    found = _ADDRESS.fullmatch(value.lower())
    return (found["name"] or found["ipv6"] or "") if found else None


def normal(host: str) -> str:
    """The form of a host in the data of a tenant by which it is looked up. One that is invalid,
    which only other programs write, is kept, in lower case."""
    if host.isascii() and ":" not in host and not host.endswith("."):
        return host.lower()
    return host_of(host) or host.lower()


def is_host(value: str) -> bool:
    """Whether a publisher may write it: ASCII, without port and trailing dot."""
    return len(value) <= LONGEST and all(_LABEL.fullmatch(label) for label in value.split("."))


def punycode(host: str) -> str:
    """The form of a host name outside ASCII that stands in requests; empty if there is none."""
    labels = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", host).lower()).split(".")
    found = ".".join(_encoded(label) for label in labels)
    return found if is_host(found) else ""


def _encoded(label: str) -> str:
    if label.isascii():
        return label
    if not all(
        letter.isascii() or unicodedata.category(letter)[0] in _IN_LABELS for letter in label
    ):
        return ""
    return f"xn--{label.encode('punycode').decode()}"
