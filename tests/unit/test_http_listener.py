"""The names and addresses of a certificate."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme

from mooring.server.http_listener import CertificateNames, certificate_names


def issued(
    folder: Path, *identities: str, until: datetime.datetime | None = None
) -> tuple[Path, Path]:
    made = trustme.CA().issue_cert(*identities, not_after=until)
    cert, key = folder / "cert.pem", folder / "key.pem"
    made.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return cert, key


def test_names_and_addresses_are_separate(tmp_path: Path):
    files = issued(tmp_path, "*.lan", "mooring.lan", "10.0.0.1", "other.lan", "::1")
    names = certificate_names(*files)
    assert names.dns == ("mooring.lan", "other.lan")
    assert names.addresses == ("10.0.0.1", "::1")


def test_expired_and_invalid_certificates_have_no_names(tmp_path: Path):
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    over = issued(tmp_path, "mooring.lan", until=long_ago)
    assert certificate_names(*over) == CertificateNames()
    (tmp_path / "key.pem").write_text("junk")
    assert certificate_names(*over) == CertificateNames()
    assert certificate_names(tmp_path / "none", tmp_path / "none") == CertificateNames()
