"""Passwords: encrypted like in the original application, revealed only on request."""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest, Undecipherable
from mooring.masking import MASK
from mooring.tenants.secrets import Keyring, Secret, key_id

KEY, OTHER = bytes(range(32)), b"x" * 32


def sealed_by_hand(text: str, key: bytes = KEY) -> str:
    nonce = os.urandom(12)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, text.encode(), None)).decode()


def test_passwords_of_the_original_can_be_decrypted():
    assert Keyring([KEY]).unseal(sealed_by_hand("p@ss 默认")) == "p@ss 默认"
    assert Keyring([KEY]).unseal(sealed_by_hand("")) == ""


def test_the_original_can_decrypt_ours():
    sealed, of = Keyring([KEY]).seal("p@ss 默认")
    raw = base64.b64decode(sealed)
    assert AESGCM(KEY).decrypt(raw[:12], raw[12:], None).decode() == "p@ss 默认"
    assert of == key_id(KEY)
    assert sealed != Keyring([KEY]).seal("p@ss 默认")[0]


@given(st.text(st.characters(codec="utf-8")))
def test_a_sealed_text_can_be_unsealed(text: str):
    ring = Keyring([KEY])
    assert ring.unseal(*ring.seal(text)) == text


@pytest.mark.parametrize("name", ["MOORING_ENCRYPTION_KEY", "ENCRYPTION_KEY"])
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("0123456789abcdef0123456789abcdef", b"0123456789abcdef0123456789abcdef"),
        (KEY.hex(), KEY),
        (KEY.hex().upper(), KEY),
        (base64.b64encode(KEY).decode(), KEY),
        (f" {base64.b64encode(KEY).decode()}\n", KEY),
        (" with spaces it has thirty-two b", b" with spaces it has thirty-two b"),
        ("\n0123456789abcdef0123456789abcdef\n", b"0123456789abcdef0123456789abcdef"),
    ],
)
def test_a_key_is_32_bytes_as_text_hexadecimal_or_base64(name: str, text: str, key: bytes):
    assert Keyring.from_environment({name: text}).current == key_id(key)


def test_the_first_variable_wins_and_former_keys_decrypt():
    environ = {
        "MOORING_ENCRYPTION_KEY": KEY.hex(),
        "ENCRYPTION_KEY": OTHER.hex(),
        "MOORING_FORMER_ENCRYPTION_KEYS": f"{OTHER.hex()}, {base64.b64encode(b'y' * 32).decode()},",
    }
    ring = Keyring.from_environment(environ)
    assert ring.current == key_id(KEY)
    for key in (KEY, OTHER, b"y" * 32):
        assert ring.unseal(sealed_by_hand("pw", key)) == "pw"
        assert ring.unseal(sealed_by_hand("pw", key), key_id(key)) == "pw"
    only = Keyring.from_environment({"ENCRYPTION_KEY": OTHER.hex(), "MOORING_ENCRYPTION_KEY": ""})
    assert only.current == key_id(OTHER)
    assert Keyring.from_environment({}).current == ""


@pytest.mark.parametrize("text", ["short", "z" * 64, base64.b64encode(b"x" * 31).decode(), " "])
def test_an_invalid_key_is_refused_and_not_shown(text: str):
    with pytest.raises(InvalidRequest, match="ENCRYPTION_KEY is not a key of 32 bytes") as error:
        Keyring.from_environment({"MOORING_ENCRYPTION_KEY": text})
    assert text.strip() == "" or text not in str(error.value)
    with pytest.raises(InvalidRequest, match="31 bytes"):
        Keyring([b"x" * 31])


def test_the_reason_of_a_failed_decryption_is_stated():
    sealed = sealed_by_hand("pw")
    raw = bytearray(base64.b64decode(sealed))
    raw[-1] ^= 1
    damaged = base64.b64encode(raw).decode()
    for ring, text, of, why in (
        (Keyring([OTHER]), sealed, "", "any known key"),
        (Keyring([OTHER]), sealed, key_id(OTHER), "any known key"),
        (Keyring([OTHER]), sealed, "feedbeef", "key feedbeef, which is not among the known keys"),
        (Keyring(), sealed, "", "there is no key: set MOORING_ENCRYPTION_KEY"),
        (Keyring([KEY]), damaged, "", "damaged"),
        (Keyring([KEY]), sealed[:-4], "", "damaged"),
        (Keyring([KEY]), "AAAA", "", "too short"),
        (Keyring([KEY]), "not base64!", "", "not base64"),
        (Keyring([KEY]), "默认", "", "not base64"),
    ):
        with pytest.raises(Undecipherable, match=why):
            ring.unseal(text, of)
    bytes_inside = base64.b64encode(b"n" * 12 + AESGCM(KEY).encrypt(b"n" * 12, b"\xff", None))
    with pytest.raises(Undecipherable):
        Keyring([KEY]).unseal(bytes_inside.decode())


def test_a_secret_is_shown_only_by_reveal():
    ring = Keyring([KEY])
    for secret in (Secret("hunter2"), Secret.sealed(*ring.seal("hunter2"), ring)):
        assert secret.reveal() == "hunter2"
        for shown in (repr(secret), str(secret), f"{secret}", repr([secret]), f"{secret!s}"):
            assert "hunter2" not in shown
            assert MASK in shown
        for copied in (
            lambda secret=secret: pickle.dumps(secret),
            lambda secret=secret: copy.deepcopy(secret),
            lambda secret=secret: json.dumps(secret),
            lambda secret=secret: msgspec.json.encode(secret),
        ):
            with pytest.raises(TypeError) as error:
                copied()
            assert "hunter2" not in str(error.value)
    assert "hunter2" not in repr(ring)
    assert KEY.hex() not in repr(ring)


def test_a_sealed_secret_is_compared_without_its_key():
    sealed, of = Keyring([KEY]).seal("pw")
    one, same = Secret.sealed(sealed, of, Keyring()), Secret.sealed(sealed, of, Keyring([KEY]))
    assert one == same
    assert hash(one) == hash(same)
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    with pytest.raises(Undecipherable):
        one.reveal()


def test_a_wrong_key_id_hides_no_known_key():
    ring = Keyring([KEY, OTHER])
    for key in (KEY, OTHER):
        sealed = Keyring([key]).seal("pw")[0]
        assert ring.sealed(sealed) == (key == KEY)
        for of in ("", key_id(KEY), key_id(OTHER), "feedbeef"):
            assert ring.unseal(sealed, of) == "pw"
    assert not ring.sealed("not base64!")
    assert not ring.sealed("AAAA")
    assert not Keyring().sealed(Keyring([KEY]).seal("pw")[0])


class TestAKeyOfAnotherApplication:
    @pytest.mark.parametrize("text", ["not-a-key", "deadbeef", "a" * 33, "{}"])
    def test_an_invalid_common_variable_fails_only_when_a_key_is_needed(self, text: str):
        ring = Keyring.from_environment({"ENCRYPTION_KEY": text})
        assert ring.current == ""
        sealed, of = Keyring([b"k" * 32]).seal("hunter2")
        secret = Secret.sealed(sealed, of, ring)
        with pytest.raises(Undecipherable, match=r"set MOORING_ENCRYPTION_KEY \(ENCRYPTION_KEY is"):
            secret.reveal()

    def test_the_key_of_a_password_is_named_if_it_is_missing(self):
        ring = Keyring.from_environment({"ENCRYPTION_KEY": "o" * 32})
        sealed, of = Keyring([b"k" * 32]).seal("hunter2")
        with pytest.raises(Undecipherable, match=f"encrypted with the key {of}"):
            ring.unseal(sealed, of)

    def test_our_own_variable_is_strict_and_wins(self):
        with pytest.raises(InvalidRequest, match="MOORING_ENCRYPTION_KEY is not a key"):
            Keyring.from_environment({"MOORING_ENCRYPTION_KEY": "x", "ENCRYPTION_KEY": "k" * 32})
        ring = Keyring.from_environment(
            {"MOORING_ENCRYPTION_KEY": "k" * 32, "ENCRYPTION_KEY": "not-a-key"}
        )
        assert ring.current == Keyring([b"k" * 32]).current
        assert not ring.borrowed
