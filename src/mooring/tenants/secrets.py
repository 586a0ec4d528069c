"""Secrets of tenants: encrypted in the store, masked in representations.

A sealed text is the base64 of nonce‖ciphertext‖tag, AES-256-GCM, without associated data, so that
programs in other languages can read it with the same 32 bytes. The id of its key (a part of the
key's SHA-256) is stored with it. The id only decides which key is tried first, since other programs
may write passwords without updating it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from mooring.errors import InvalidRequest, MissingExtra, Undecipherable
from mooring.masking import MASK
from mooring.messages import Message, message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CURRENT = ("MOORING_ENCRYPTION_KEY", "ENCRYPTION_KEY")
"""Environment variables with the key that encrypts; the first that is set counts. The second has a
common name, so its value may belong to another application."""
FORMER = "MOORING_FORMER_ENCRYPTION_KEYS"
"""The variable with further keys for decryption, separated by commas."""

_NONCE, _TAG, _KEY = 12, 16, 32
_MIN_SEALED = _NONCE + _TAG  # bytes of the shortest sealed text


class Secret:
    """Text that only `reveal` returns; its representation is masked. It may still be sealed."""

    __slots__ = ("_key_id", "_ring", "_sealed", "_text")

    def __init__(self, text: str) -> None:
        self._text: str | None = text
        self._sealed = self._key_id = ""
        self._ring: Keyring | None = None

    @classmethod
    def sealed(cls, sealed: str, key_id: str, ring: Keyring) -> Secret:
        secret = cls("")
        secret._text, secret._sealed, secret._key_id, secret._ring = None, sealed, key_id, ring
        return secret

    def reveal(self) -> str:
        """The text. Raises `Undecipherable` if its key is unknown."""
        if self._text is None:
            assert self._ring is not None
            self._text = self._ring.unseal(self._sealed, self._key_id)
        return self._text

    def __eq__(self, other: object) -> bool:
        """Whether both are stored alike. Sealed secrets can be compared without the key."""
        if not isinstance(other, Secret):
            return NotImplemented
        if self._sealed or other._sealed:
            return (self._sealed, self._key_id) == (other._sealed, other._key_id)
        return self._text == other._text

    def __hash__(self) -> int:
        return hash((self._sealed, "" if self._sealed else self._text))

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied: reveal it")


class Keyring:
    """The keys of this process: the first encrypts, all decrypt."""

    def __init__(
        self, keys: Sequence[bytes] = (), *, borrowed: bool = False, ignored: str = ""
    ) -> None:
        for key in keys:
            if len(key) != _KEY:
                raise InvalidRequest(message("key_size", count=len(key), size=_KEY))
        self._keys = {key_id(key): key for key in keys}
        self._ciphers: dict[str, AESGCM] = {}
        self.current: str = key_id(keys[0]) if keys else ""
        """The id of the key that encrypts; empty if there is none."""
        self.borrowed: bool = borrowed
        """Whether that key may belong to another application."""
        self._ignored = ignored
        """A variable that does not hold a key, for error messages."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Keyring:
        """The keys in the variables `CURRENT` and `FORMER`. If the second of `CURRENT` does not
        hold a key, it is ignored, and errors about encrypted passwords mention it. Raises
        `InvalidRequest`."""
        environ = os.environ if environ is None else environ
        own, common = CURRENT
        texts = [(own, environ[own])] if environ.get(own) else []
        texts += [(FORMER, text) for text in environ.get(FORMER, "").split(",") if text.strip()]
        keys = [_read(name, text) for name, text in texts]
        if environ.get(own) or not environ.get(common):
            return cls(keys)
        try:
            return cls([_read(common, environ[common]), *keys], borrowed=True)
        except InvalidRequest:
            return cls(keys, ignored=common)

    @property
    def remedy(self) -> Message:
        """How to set a key, for error messages."""
        return message("set_key", variable=CURRENT[0], ignored=self._ignored)

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def seal(self, text: str) -> tuple[str, str]:
        """The sealed text and the id of its key. Requires a current key."""
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher(self.current).encrypt(nonce, text.encode(), None)
        return base64.b64encode(sealed).decode(), self.current

    def unseal(self, sealed: str, id: str = "") -> str:
        """The text; `id` is the key to try first. Raises `Undecipherable` if no key fits."""
        raw = decoded(sealed)
        if not self._keys:
            raise Undecipherable(message("password_without_key", remedy=self.remedy))
        for candidate in sorted(self._keys, key=lambda known: known != id):
            text = self._decrypt(candidate, raw)
            if text is not None:
                return text
        if id and id not in self._keys:
            known = list(self._keys)
            problem = message("password_of_unknown_key", id=id, known=known, variable=FORMER)
            raise Undecipherable(problem)
        raise Undecipherable(message("password_undecipherable", variable=FORMER))

    def sealed(self, text: str) -> bool:
        """Whether the current key encrypted this, regardless of the stored id."""
        try:
            return bool(self.current) and self._decrypt(self.current, decoded(text)) is not None
        except Undecipherable:
            return False

    def _decrypt(self, id: str, raw: bytes) -> str | None:
        cipher = self._cipher(id)
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(raw[:_NONCE], raw[_NONCE:], None).decode()
        except (InvalidTag, UnicodeDecodeError):
            return None

    def _cipher(self, id: str) -> AESGCM:
        if id not in self._ciphers:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError as error:
                raise MissingExtra(message("an_encrypted_password"), "tenants") from error
            self._ciphers[id] = AESGCM(self._keys[id])
        return self._ciphers[id]

    def __repr__(self) -> str:
        return f"<Keyring {' '.join(self._keys) or 'without keys'}>"


def key_id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:8]


def decoded(sealed: str) -> bytes:
    """The bytes of a sealed text. Raises `Undecipherable` if they cannot be one."""
    if len(raw := _from_base64(sealed)) < _MIN_SEALED:
        raise Undecipherable(message("password_damaged"))
    return raw


def _from_base64(text: str) -> bytes:
    """Empty if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _read(name: str, text: str) -> bytes:
    """32 bytes as they are, in hexadecimal, or in base64."""
    raw = text.encode()
    if len(raw) == _KEY:
        return raw
    text = text.strip()
    if len(text.encode()) == _KEY:
        return text.encode()
    if re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        return bytes.fromhex(text)
    if len(raw := _from_base64(text)) != _KEY:
        raise InvalidRequest(message("key_invalid", name=name))
    return raw
