"""The undo command that `mooring tenant delete` prints."""

from __future__ import annotations

import pytest

from mooring.cli.commands.tenant.publish import rollback_command


@pytest.mark.parametrize(
    ("namespace", "default", "option"),
    [
        ("jxt", None, ""),
        ("jxt", "", ""),
        ("jxt", "other", " --namespace jxt"),
        ("other", "other", ""),
        ("other/", "/other", ""),
        ("a b", None, " --namespace 'a b'"),
    ],
)
def test_a_hint_names_the_namespace_unless_it_is_the_default(
    namespace: str, default: str | None, option: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MOORING_TENANTS_NAMESPACE", raising=False)
    if default is not None:
        monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", default)
    assert rollback_command(12, 3, namespace) == f"mooring tenant rollback 12 3{option}"
