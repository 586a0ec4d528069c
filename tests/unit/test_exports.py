"""`__all__` lists what is public, and errors about a missing extra name that extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mooring
import mooring.errors
import mooring.heartbeat
import mooring.settings
import mooring.store
import mooring.sync
import mooring.tenants
from mooring.sync.proxy import is_data


@pytest.mark.parametrize(
    "module",
    [
        mooring,
        mooring.heartbeat,
        mooring.settings,
        mooring.store,
        mooring.sync,
        mooring.tenants,
    ],
)
def test_every_public_name_exists_and_no_other(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_all_names_can_be_imported_without_any_extra():
    script = """
import sys
for driver in ("cryptography", "google", "grpc", "hprose", "httpx", "immutables", "redis"):
    sys.modules[driver] = None
from mooring import *
assert Hub and View and Conflict
from mooring.sync import *
assert Hub and View and Conflict and timeout
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_names_and_packages_are_loaded_on_first_use():
    script = """
import mooring, sys
assert {*mooring.__all__, "errors", "sync"} <= {*dir(mooring)}
assert "mooring.errors" not in sys.modules
assert mooring.MooringError is mooring.errors.MooringError
assert mooring.sync.connect and not hasattr(mooring, "conect")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_error_is_exported():
    public = vars(mooring.errors).items()
    errors = {
        name
        for name, value in public
        if getattr(value, "__module__", "") == "mooring.errors" and not name.startswith("_")
    }
    assert errors - {"misplaced"} <= {*mooring.__all__}


def test_the_blocking_api_has_the_same_names_as_the_async_api():
    """Except the version, and a function that only blocking code needs."""
    assert {*mooring.__all__} - {*mooring.sync.__all__} == {"__version__"}
    assert {*mooring.sync.__all__} - {*mooring.__all__} == {"timeout"}
    assert {*mooring.sync.__all__, "Provider"} <= {*dir(mooring.sync)}


def test_plain_data_is_the_same_in_the_blocking_api():
    for name in {*mooring.__all__, "Provider"} - {"__version__"}:
        value, blocking = getattr(mooring, name), getattr(mooring.sync, name)
        assert (blocking is value) is (isinstance(value, type) and is_data(value)), name
    assert mooring.sync.Instance is mooring.Instance
    assert mooring.sync.LockLost is mooring.LockLost


DEEPER = {"mooring.server.health_checks"}
"""For checkers, which are plugins of the server; applications do not import it."""


def test_the_documentation_imports_from_mooring_and_its_packages():
    root = Path(__file__).parents[2]
    imported = re.compile(r"^\s*(?:from|import) (mooring[\w.]*)", re.MULTILINE)
    modules = {
        module
        for page in [*root.glob("*.md"), *root.glob("docs/**/*.md")]
        for module in imported.findall(page.read_text(encoding="utf-8"))
    }
    assert {"mooring", "mooring.sync", "mooring.store"} <= modules
    assert {module for module in modules if module.count(".") > 1} == DEEPER


def test_every_name_of_the_contract_is_exported():
    from mooring.store import contract

    public = {
        name
        for name, value in vars(contract).items()
        if getattr(value, "__module__", "") == contract.__name__ and not name.startswith("_")
    }
    internal = {"check_key", "after_prefix"}
    assert public - internal <= set(mooring.store.__all__)


def test_without_grpc_the_memory_store_works_and_etcd_names_the_extra():
    script = """
import asyncio, sys
sys.modules["grpc"] = None
import mooring
from mooring.errors import MissingExtra
from mooring.store import Put

async def main():
    async with mooring.connect("memory://") as hub:
        await hub.store.commit(Put(b"/a", b""))
    try:
        async with mooring.connect("etcd://127.0.0.1:1"):
            pass
    except MissingExtra as error:
        print(error)

asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "mooring[etcd]" in run.stdout


def test_tenants_are_imported_without_the_extra_and_what_needs_it_names_it():
    script = """
import sys
import mooring.tenants
assert "immutables" not in sys.modules
sys.modules["immutables"] = sys.modules["cryptography"] = None
from mooring.tenants import Document, Publisher, Resolver, Tenant, current_or_none
assert not hasattr(mooring.tenants, "Tenantz")
try:
    from mooring.tenants import Tenants
except mooring.errors.MissingExtra as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "mooring[tenants]" in run.stdout


def test_descriptors_of_other_libraries_do_not_clash_with_moorings():
    """Two etcd clients in one process: Mooring's has private names in a private pool."""
    script = """
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb")
file.message_type.add(name="RangeRequest")
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
from mooring.store.etcd import proto
assert proto.RangeRequest.DESCRIPTOR.full_name == "mooring.etcd.RangeRequest"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
