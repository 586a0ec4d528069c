"""Passwords that would be stored in clear text beside encrypted ones."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from mooring.errors import InvalidRequest
from mooring.model import JSON
from mooring.store import Committed, Delete, Put, Range, Snapshot, Store, key
from mooring.tenants.publish.encryption import PasswordPlanner
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring
from tests.backends import in_memory
from tests.features.tenant_files import KEYS, document
from tests.features.tenant_publisher.support import NO_KEY, RING, Commit, hooked, value

OTHER = b"o" * 32
BORROWED = Keyring.from_environment({"ENCRYPTION_KEY": OTHER.decode()})


def database(password: str = "hunter2") -> JSON:
    return {"driver": "mysql", "database": "x", "password": password}


@pytest.fixture
def keyless(store: Store) -> Publisher:
    return Publisher(store, ring=NO_KEY, by="bob")


async def test_clear_text_is_refused_if_other_passwords_are_encrypted(
    store: Store, publisher: Publisher, keyless: Publisher
):
    await publisher.apply(document(1))
    with pytest.raises(InvalidRequest, match=r"tenant 2: database/query.*clear text.*MOORING_ENC"):
        await keyless.apply(document(2))
    with pytest.raises(InvalidRequest, match="clear text"):
        await keyless.diff(document(2))
    assert await keyless.read(2) == {}
    await keyless.apply(document(2, database={}))
    with pytest.raises(InvalidRequest, match="clear text"):
        await keyless.put(2, "database/query", database())
    await keyless.put(1, "storage", {"uploadQuotaGb": 9})
    await keyless.put(1, "database/query", {"driver": "mysql", "database": "other"})


async def test_encrypted_passwords_of_other_programs_count(store: Store, keyless: Publisher):
    raw = '{"driver": "x", "passwordEncrypted" : "SEALED"}'.replace("SEALED", RING.seal("pw")[0])
    await store.commit(Put(KEYS.part(3, "database/query"), raw.encode()))
    with pytest.raises(InvalidRequest, match="clear text"):
        await keyless.apply(document(2))


async def many(store: Store, last: bytes = b"{}") -> None:
    """More tenants than fit on a page, and this value at the end of them."""
    for some in range(101):
        numbers = range(100_000 + some * 100, 100_100 + some * 100)
        await store.commit(*(Put(KEYS.part(number, "storage"), b"{}") for number in numbers))
    await store.commit(Put(KEYS.part(9, "database/query"), last))


def sealed(key_id: str | None = RING.current, ring: Keyring = RING) -> bytes:
    return msgspec.json.encode(
        {"passwordEncrypted": ring.seal("pw")[0], "passwordKeyId": key_id, "driver": "mysql"}
    )


async def test_encrypted_passwords_count_anywhere_and_are_searched_for_once(
    store: Store, keyless: Publisher
):
    await many(store, sealed())
    with pytest.raises(InvalidRequest, match="clear text"):
        await keyless.diff(document(2))
    assert await value(store, KEYS.encryption) is None, "a diff writes nothing"
    with pytest.raises(InvalidRequest, match="clear text"):
        await keyless.apply(document(2))
    assert await value(store, KEYS.encryption) == {"keyId": RING.current}
    await store.commit(Delete(key(KEYS.part(9, "database/query"))))
    with pytest.raises(InvalidRequest, match="clear text"):
        await keyless.apply(document(2))


async def test_encrypted_passwords_that_another_program_writes_later_count(
    store: Store, keyless: Publisher
):
    await many(store)
    await keyless.put(2, "database/query", database())
    await store.commit(Put(KEYS.part(999_999, "database/query"), sealed()))
    with pytest.raises(InvalidRequest, match=f"clear text.*with the key {RING.current}"):
        await keyless.put(3, "database/query", database())
    assert await keyless.read(3) == {}


async def test_concurrent_publishes_share_a_search(store: Store):
    class Counting:
        looks = 0

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def read(self, range: Range, **options: Any) -> Snapshot:
            self.looks += range == KEYS.all
            return await store.read(range, **options)

    await store.commit(Put(KEYS.part(1, "storage"), b"{}"))
    counting = Counting()
    search = PasswordPlanner(cast(Store, counting), KEYS, NO_KEY)
    assert await asyncio.gather(*(search.key_in_use() for _ in range(10))) == [None] * 10
    assert counting.looks == 2, "the nine that came during the first search share the next"
    await store.commit(Put(KEYS.part(999, "database/query"), sealed()))
    assert await search.key_in_use() == RING.current
    assert counting.looks == 3, "a search that ended before does not count"


async def test_an_encrypted_password_in_the_same_publish_counts(store: Store, keyless: Publisher):
    parts = {"query": database(), "files": msgspec.json.decode(sealed())}
    parts["files"]["database"] = "y"
    with pytest.raises(InvalidRequest, match=r"clear text.*that of database/files is encrypted"):
        await keyless.apply(document(2, database=parts))
    assert await keyless.read(2) == {}
    await keyless.apply(document(2))


async def test_an_empty_encrypted_password_does_not_count(store: Store, keyless: Publisher):
    raw = b'{"driver": "x", "password": "pw", "passwordEncrypted": ""}'
    await store.commit(Put(KEYS.part(3, "database/query"), raw))
    await keyless.apply(document(2))


async def test_after_the_last_encrypted_password_the_refusal_says_what_to_do(
    store: Store, publisher: Publisher, keyless: Publisher
):
    """The marker remains. Setting a key or deleting the marker helps."""
    await publisher.apply(document(1))
    await publisher.delete(1)
    with pytest.raises(InvalidRequest) as refused:
        await keyless.apply(document(2))
    assert str(refused.value) == (
        "tenant 2: database/query.password would be stored in clear text, but jxt has or had "
        f"passwords that are encrypted with the key {RING.current}: set MOORING_ENCRYPTION_KEY, or "
        "delete jxt/_encryption if none is left"
    )
    await Publisher(store, ring=Keyring([OTHER])).apply(document(2))
    await publisher.delete(2)
    await store.commit(Delete(key(KEYS.encryption)))
    await keyless.apply(document(2))


async def test_without_encrypted_passwords_clear_text_is_stored_with_a_warning(
    store: Store, keyless: Publisher, caplog: pytest.LogCaptureFixture
):
    done = await keyless.apply(document(1))
    assert "database/query is stored in clear text" in caplog.text
    assert any("clear text" in remark.text for remark in done.remarks)
    caplog.clear()
    again = await keyless.put(1, "storage", {"uploadQuotaGb": 9})
    kept = await keyless.put(1, "database/query", {"driver": "mysql", "database": "other"})
    assert "clear text" not in caplog.text
    assert again.remarks == kept.remarks == ()


async def test_clear_text_secrets_of_all_tenants_are_stored_with_a_warning(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
):
    done = await publisher.put_common("platform/configs/mail", {"host": "mx", "password": "pw"})
    warning = "platform/configs/mail (password): stored in clear text"
    assert warning in caplog.text
    assert warning in done.remarks[0].text
    done = await publisher.put_common("platform/configs/smtp-password", "pw")
    assert "platform/configs/smtp-password: stored in clear text" in done.remarks[0].text
    caplog.clear()
    done = await publisher.put_common("platform/configs/theme", {"colour": "blue"})
    removed = await publisher.remove_common("platform/configs/mail")
    assert done.remarks == removed.remarks == ()
    assert "clear text" not in caplog.text


@pytest.mark.parametrize("encrypted", [True, False])
async def test_other_secrets_of_a_tenant_are_stored_with_a_warning(
    store: Store, encrypted: bool, caplog: pytest.LogCaptureFixture
):
    publisher = Publisher(store, ring=RING if encrypted else NO_KEY)
    await publisher.apply(document(1, database={}))
    value: JSON = {"driver": "x", "database": "y", "extra": {"replicaPassword": "pw"}}
    done = await publisher.put(1, "database/query", value)
    warning = "database/query (replicaPassword): stored in clear text"
    assert warning in caplog.text
    assert [warning in remark.text for remark in done.remarks] == [True]
    done = await publisher.put(1, "storage", {"extra": {"secretKey": "pw", "region": "eu"}})
    assert ["storage (secretKey): stored" in remark.text for remark in done.remarks] == [True]
    caplog.clear()
    hashed = await publisher.put(1, "ftp/one", {"passwordHash": "$2a$10$x"})
    removed = await publisher.remove(1, "storage")
    assert hashed.remarks == removed.remarks == ()
    assert "clear text" not in caplog.text


async def test_a_concurrent_publish_in_clear_text_notices_an_encrypted_one(
    store: Store, publisher: Publisher
):
    async def hook(number: int, go: Commit) -> Committed:
        if number == 1:
            await publisher.apply(document(1))
        return await go()

    with pytest.raises(InvalidRequest, match="clear text"):
        await hooked(store, hook, NO_KEY).apply(document(2))


async def test_the_key_of_another_application_encrypts_nothing_beside_ours(
    store: Store, publisher: Publisher
):
    stranger = Publisher(store, ring=BORROWED, by="eve")
    await stranger.put(5, "database/query", database())
    assert Keyring([OTHER]).current in str((await stranger.read(5))["database/query"])
    await stranger.delete(5)
    await publisher.apply(document(1))
    with pytest.raises(InvalidRequest, match=r"another application: set MOORING_ENCRYPTION_KEY"):
        await stranger.apply(document(2))
    await stranger.put(1, "storage", {"uploadQuotaGb": 9})


@in_memory
@pytest.mark.parametrize("key_id", [RING.current, "", None])
async def test_the_key_of_another_application_is_compared_with_that_of_encrypted_passwords(
    store: Store, key_id: str | None
):
    await many(store, sealed(key_id))
    stranger = Publisher(store, ring=BORROWED, by="eve")
    for attempt in (stranger.diff, stranger.apply):
        with pytest.raises(InvalidRequest, match=r"another application: set MOORING_ENCRYPTION_K"):
            await attempt(document(2))
    assert await stranger.read(2) == {}
    with pytest.raises(InvalidRequest, match="clear text"):
        await Publisher(store, ring=NO_KEY).apply(document(2))
    with pytest.raises(InvalidRequest, match="another application"):
        await stranger.apply(document(2))


async def test_the_common_variable_can_contain_the_key_in_use(store: Store):
    await store.commit(Put(KEYS.part(3, "database/old"), sealed()))
    await store.commit(Put(KEYS.part(3, "database/query"), sealed("", Keyring([OTHER]))))
    await Publisher(store, ring=BORROWED).apply(document(2))
    assert await value(store, KEYS.encryption) == {"keyId": BORROWED.current}


async def test_a_changed_key_replaces_the_former_one(store: Store, publisher: Publisher):
    await publisher.apply(document(1))
    environment = {"ENCRYPTION_KEY": OTHER.decode(), "MOORING_FORMER_ENCRYPTION_KEYS": "k" * 32}
    ring = Keyring.from_environment(environment)
    await Publisher(store, ring=ring).rekey()
    await Publisher(store, ring=BORROWED).apply(document(2))
