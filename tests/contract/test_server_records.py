"""Records that grant rights: servers with the key share them, and a client with mere write access
to the store can neither create one nor restore an old one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from mooring.backends import open_store
from mooring.errors import Conflict
from mooring.server.auth.signed_records import ServerKey, SignedRecords, is_key_of, seal, unseal
from mooring.store import Delete, Entry, Put, Store, key, prefix
from tests.backends import USUAL, usual
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

KEY, OTHER_KEY = ServerKey(b"k" * 32), ServerKey(b"o" * 32)
ROOT = b"/mooring/rights/"


class Right(msgspec.Struct, frozen=True):
    role: str
    revoked: bool = False


@pytest.fixture(params=usual(USUAL))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url) as opened:
        yield opened


@contextlib.asynccontextmanager
async def reading(
    store: Store, server_key: ServerKey = KEY, purpose: str = "rights"
) -> AsyncIterator[SignedRecords[Right]]:
    """The records as a server knows them that starts now."""
    async with SignedRecords(store, server_key, purpose, Right) as records:
        await records.mirror.ready()
        yield records


async def stored(store: Store, id: str) -> Entry:
    entry = (await store.read(key(ROOT + id.encode()))).first
    assert entry is not None
    return entry


async def rights(store: Store) -> dict[str, Right]:
    async with reading(store) as records:
        return records.all()


async def test_a_record_of_one_server_is_known_to_the_others(store: Store):
    async with reading(store) as one, reading(store) as other:
        await one.create("a", Right("viewer"))
        assert one.get("a") == Right("viewer")
        await eventually(lambda: other.get("a") == Right("viewer"))
        with pytest.raises(Conflict):
            await other.create("a", Right("admin"))
        assert await other.change("a", lambda was: Right(was.role, revoked=True)) is not None
        await eventually(lambda: one.get("a") == Right("viewer", revoked=True))
        assert await one.change("b", lambda was: was) is None
        assert await rights(store) == {"a": Right("viewer", revoked=True)}
        assert [await one.remove("a"), await other.remove("a")] == [True, False]
        assert await rights(store) == {}
        await one.create("a", Right("operator"))
        await eventually(lambda: other.get("a") == Right("operator"))


async def test_a_record_that_another_server_just_created_is_found(store: Store):
    behind = SignedRecords(store, KEY, "rights", Right)  # it does not follow the store yet
    async with reading(store) as one:
        await one.create("a", Right("viewer"))
        assert behind.get("a") is None
        assert await behind.find("a") == behind.get("a") == Right("viewer")
        assert await behind.find("b") is None
        await store.commit(Put(ROOT + b"forged", b'{"role":"admin"}'))
        assert await behind.find("forged") is None


async def test_a_record_can_expire(store: Store):
    async with reading(store) as records:
        await records.create("a", Right("viewer"), ttl=1)
        assert (await stored(store, "a")).lease
        await records.change("a", lambda was: Right(was.role, revoked=True))
        await eventually(lambda: records.get("a") is None)


async def test_a_writer_without_the_key_cannot_grant_rights(
    store: Store, caplog: pytest.LogCaptureFixture
):
    async with reading(store) as records:
        await records.create("a", Right("viewer"))
        for number, value in enumerate(
            [
                b"",
                b"{",
                b"[]",
                b'{"role": "admin"}',
                b'{"content": {"role": "admin"}, "created": 1, "version": 1, "mac": ""}',
                (await stored(store, "a")).value.replace(b"viewer", b"admin"),
                b"\xff" * 40,
            ]
        ):
            await store.commit(Put(ROOT + b"forged-%d" % number, value))
        for version in (1, 2):
            made = await store.commit(Put(ROOT + b"other", b"{}"))
            place = (store.identity, ROOT + b"other", made.revision, version)
            forged = seal(OTHER_KEY, *place, b'{"role":"admin"}')
            await store.commit(Put(ROOT + b"other", forged))
        await records.create("last", Right("viewer"))
        assert set(await rights(store)) == {"a", "last"}
        await eventually(
            lambda: "the server ignores the record /mooring/rights/other:" in caplog.text
        )
        assert set(records.all()) == {"a", "last"}


async def test_a_writer_cannot_copy_a_record_to_another_id_or_purpose(store: Store):
    async with reading(store) as records:
        await records.create("mine", Right("admin"))
    entry = await stored(store, "mine")
    for copy in (ROOT + b"copy", b"/mooring/others/mine"):
        for _ in range(2):  # as often written as the copied record
            await store.commit(Put(copy, entry.value))
    assert set(await rights(store)) == {"mine"}
    async with reading(store, purpose="others") as others:
        assert len(others) == 0


async def test_a_writer_cannot_restore_a_revoked_record(store: Store):
    async with reading(store) as records:
        await records.create("a", Right("admin"))
        before = (await stored(store, "a")).value
        await records.change("a", lambda was: Right(was.role, revoked=True))
        revoked = (await stored(store, "a")).value
        name = ROOT + b"a"

        async def grants() -> bool:
            here = records.get("a")
            new = (await rights(store)).get("a")
            return any(right is not None and not right.revoked for right in (here, new))

        await store.commit(Put(name, before))
        assert not await grants()
        await store.commit(Delete(key(name)))
        for _ in range(4):
            await store.commit(Put(name, before))
            assert not await grants()
        await store.commit(Delete(key(name)))
        await store.commit(Put(name, b"{}"))
        await store.commit(Put(name, before))
        assert not await grants()
        await store.commit(Put(name, revoked))
        assert not await grants()
        await eventually(lambda: records.get("a") is None)


async def test_a_writer_cannot_change_a_record_and_its_numbers(store: Store):
    """It knows the revision and version of its own write, and can put them into the value."""
    async with reading(store) as records:
        await records.create("a", Right("viewer"))
        before = await stored(store, "a")
        await records.change("a", lambda was: Right(was.role, revoked=True))
    revoked = await stored(store, "a")

    def edited(entry: Entry, **numbers: int) -> bytes:
        return msgspec.json.encode(msgspec.json.decode(entry.value) | numbers)

    name = ROOT + b"a"
    await store.commit(Put(name, edited(before, version=revoked.version + 1)))
    assert await rights(store) == {}
    higher = revoked.value.replace(b"viewer", b"admin").replace(
        b'"revoked":true', b'"revoked":false'
    )
    await store.commit(Put(name, higher.replace(b'"version":3', b'"version":5')))
    assert await rights(store) == {}
    await store.commit(Delete(key(name)))
    made = await store.commit(Put(name, b""))
    await store.commit(Put(name, edited(before, created=made.revision)))
    entry = await stored(store, "a")
    assert (entry.created, entry.version) == (made.revision, before.version)
    assert await rights(store) == {}


@pytest.mark.parametrize("part", ["store", "name", "created", "version", "content", "key"])
def test_the_mac_covers_every_part(part: str):
    place = {"store": "s", "name": b"/n", "created": 7, "version": 2, "content": b'{"a":1}'}
    other = {"store": "t", "name": b"/m", "created": 8, "version": 3, "content": b'{"a":2}'}
    for changed in ("", part):
        signer = OTHER_KEY if changed == "key" else KEY
        signed = {**place, **({changed: other[changed]} if changed in other else {})}
        mac = msgspec.json.decode(seal(signer, **signed))["mac"]  # type: ignore[arg-type]
        shown = msgspec.json.decode(seal(KEY, **place)) | {"mac": mac}  # type: ignore[arg-type]
        entry = Entry(b"/n", msgspec.json.encode(shown), 7, 9, 2)
        if changed:
            with pytest.raises(ValueError, match="not written to this store"):
                unseal(KEY, "s", entry)
        else:
            assert unseal(KEY, "s", entry)[0] == b'{"a":1}'


async def test_a_writer_cannot_restore_a_deleted_record(store: Store):
    async with reading(store) as records:
        await records.create("a", Right("admin"))
        before = (await stored(store, "a")).value
        assert await records.remove("a")
        for _ in range(3):
            await store.commit(Put(ROOT + b"a", before))
            assert await rights(store) == {}


async def test_an_interrupted_creation_leaves_no_valid_record(store: Store):
    await store.commit(Put(ROOT + b"half", b"{}"))
    async with reading(store) as records:
        assert len(records) == 0
        assert await records.change("half", lambda was: was) is None


async def test_a_store_has_one_key(store: Store):
    assert await is_key_of(store, KEY)
    assert await is_key_of(store, KEY)
    assert not await is_key_of(store, OTHER_KEY)
    async with reading(store) as records:
        await records.create("a", Right("admin"))
    async with reading(store, OTHER_KEY) as records:
        assert len(records) == 0
    held = [entry.value for entry in (await store.read(prefix(b"/mooring/"))).entries]
    assert not any(b"k" * 32 in value for value in held)


async def test_a_record_of_another_store_grants_no_rights(store: Store):
    """The revisions of a recreated store start again, so that a writer can give a key the same
    numbers."""
    async with reading(store) as records:
        await records.create("a", Right("admin"))
    entry = await stored(store, "a")
    async with open_store("memory://") as other:
        while (await other.read(key(b"x"))).revision < entry.created - 1:
            await other.commit(Put(b"pad", b""))
        await other.commit(Put(entry.key, b"{}"))
        await other.commit(Put(entry.key, entry.value))
        copied = await stored(other, "a")
        assert (copied.created, copied.version) == (entry.created, entry.version)
        assert await rights(other) == {}
