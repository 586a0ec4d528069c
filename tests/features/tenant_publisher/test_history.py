"""The history of a tenant, rollbacks, and the keys of its secrets."""

from __future__ import annotations

import base64
from typing import cast

import msgspec
import pytest

from mooring.errors import InvalidRequest, NotConfigured, OutcomeUnknown, Taken, Undecipherable
from mooring.model import JSON
from mooring.store import Delete, Put, Store, key
from mooring.tenants.parts import UnreadablePart
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring
from tests.backends import in_memory
from tests.features.tenant_files import (
    KEYS,
    Stopped,
    assert_consistent,
    document,
    everything_of,
)
from tests.features.tenant_publisher.support import NO_KEY, RING, with_faults


class TestHistory:
    async def test_the_history_names_the_author_and_both_values_of_each_change(self, store: Store):
        alice = Publisher(store, ring=RING, by="alice")
        bob = Publisher(store, ring=RING, by="bob")
        await alice.put(1, "storage", {"uploadQuotaGb": 1})
        await bob.change(
            1, lambda parts: {"storage": {"uploadQuotaGb": 2}}, action="migrate", note="why"
        )
        await alice.delete(1, note="gone")
        first, second, third = await alice.history(1)
        one: JSON = {"tenantId": 1, "uploadQuotaGb": 1}
        assert (first.number, first.by, first.action) == (1, "alice", "publish")
        assert [(s.path, s.before, s.after) for s in first.changes] == [("storage", None, one)]
        assert (second.by, second.action, second.note) == ("bob", "migrate", "why")
        assert second.changes[0].before == one
        assert (third.action, third.note, third.changes[0].after) == ("delete", "gone", None)
        assert first.at <= second.at <= third.at
        assert first.at.endswith("Z")

    async def test_the_history_is_trimmed_by_count(self, store: Store):
        publisher = Publisher(store, ring=RING, keep=3)
        for n in range(8):
            await publisher.put(1, "storage", {"uploadQuotaGb": n})
            await publisher.put(10, "storage", {"uploadQuotaGb": n})
        assert [entry.number for entry in await publisher.history(1)] == [6, 7, 8]
        with pytest.raises(NotConfigured, match=r"no version 4 .*available: 5 to 8"):
            await publisher.rollback(1, 4)
        await publisher.rollback(1, 5)
        assert (await publisher.read(1))["storage"] == {"tenantId": 1, "uploadQuotaGb": 4}

    async def test_the_history_is_trimmed_by_age(self, store: Store):
        publisher = Publisher(store, ring=RING)
        for n in range(5):
            await publisher.put(1, "storage", {"uploadQuotaGb": n})
        strict = Publisher(store, ring=RING, keep_for=-1)
        await strict.put(1, "storage", {"uploadQuotaGb": 9})
        assert [entry.number for entry in await publisher.history(1)] == [6]

    async def test_secrets_in_the_history_are_sealed(self, store: Store, publisher: Publisher):
        await publisher.apply(document(1, "one"))
        await publisher.put(
            1, "database/query", {"driver": "x", "database": "x", "password": "pw-another"}
        )
        await publisher.put(
            1,
            "ftp/one_ftp",
            {
                "passwordHash": "hash-2",
                "extra": {"smtp": {"token": "hash-3"}, "list": [{"pwd": "hash-4 of a list"}]},
            },
        )
        raw = b"".join((await everything_of(store)).values())
        history = b"".join(e.value for e in (await store.read(KEYS.histories)).entries)
        for secret in (b"pw-one", b"pw-another"):
            assert secret not in raw
        for secret in (b"hash-one", b"hash-2", b"hash-3", b"hash-4"):
            assert secret not in history
            assert secret.decode() not in repr(await publisher.history(1))
        before = dict(await publisher.read(1))
        await publisher.rollback(1, 1)
        assert (await publisher.read(1))["ftp/one_ftp"] == {
            "tenantId": 1,
            "username": "one_ftp",
            "passwordHash": "hash-one",
        }
        await publisher.rollback(1, 3)
        assert await publisher.read(1) == before

    async def test_without_a_key_secrets_are_omitted_and_a_rollback_keeps_the_current_ones(
        self, store: Store
    ):
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.apply(document(1, "one"))
        await publisher.put(1, "ftp/one_ftp", {"passwordHash": "hash-2", "description": "new"})
        history = b"".join(e.value for e in (await store.read(KEYS.histories)).entries)
        assert b"hash-" not in history
        assert b"pw-one" not in history
        await publisher.rollback(1, 1)
        assert (await publisher.read(1))["ftp/one_ftp"] == {
            "tenantId": 1,
            "username": "one_ftp",
            "passwordHash": "hash-2",
        }

    async def test_a_rollback_names_what_it_cannot_restore(self, store: Store, caplog):
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.apply(document(1, "one"))
        await publisher.delete(1)
        done = await publisher.rollback(1, 1)
        assert (await publisher.read(1))["ftp/one_ftp"] == {"tenantId": 1, "username": "one_ftp"}
        assert done.lost == ("database/query.password", "ftp/one_ftp.passwordHash")
        note = (await publisher.history(1))[-1].note
        assert note == "to 1 (without database/query.password, ftp/one_ftp.passwordHash)"
        assert "ftp/one_ftp.passwordHash" in caplog.text
        again = await publisher.rollback(1, 1)
        assert (again.changes, again.lost) == ((), ())

    async def test_a_password_that_was_sealed_meanwhile_is_kept(self, store: Store):
        await Publisher(store, ring=NO_KEY).apply(document(1, "one"))
        sealed = RING.seal("pw-sealed")[0]
        foreign = {"driver": "mysql", "database": "x", "passwordEncrypted": sealed}
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.put(1, "database/query", {"driver": "mysql", "database": "two"})
        await store.commit(Put(KEYS.part(1, "database/query"), msgspec.json.encode(foreign)))
        done = await Publisher(store, ring=RING).rollback(1, 1)
        database = cast(dict[str, JSON], (await publisher.read(1))["database/query"])
        assert database["database"] == "one"
        assert RING.unseal(str(database["passwordEncrypted"])) == "pw-sealed"
        assert "password" not in database
        assert done.lost == ()

    async def test_a_recreated_part_keeps_its_secret(self, store: Store):
        publisher = Publisher(store, ring=NO_KEY)
        await publisher.put(1, "ftp/bob", {"passwordHash": "hash-1", "description": "old"})
        await publisher.remove(1, "ftp/bob")
        await publisher.put(1, "ftp/bob", {"passwordHash": "hash-2"})
        done = await publisher.rollback(1, 1)
        user = cast(dict[str, JSON], (await publisher.read(1))["ftp/bob"])
        assert (user["passwordHash"], user["description"]) == ("hash-2", "old")
        assert done.lost == ()

    async def test_values_that_look_like_marks_of_the_history_are_restored_unchanged(
        self, store: Store, publisher: Publisher
    ):
        extra: JSON = {
            "a": {"$sealed": "x"},
            "b": [{"$omitted": 1, "c": 2}],
            "$raw": "y",
            "n": None,
        }
        raw = msgspec.json.encode(extra)
        await store.commit(Put(KEYS.part(1, "storage"), raw))
        await publisher.put(1, "storage", {"extra": {"$raw": None, "a": 1}})
        await publisher.rollback(1, 0)
        assert (await publisher.read(1))["storage"] == extra

    async def test_an_unreadable_value_is_restored_unchanged(
        self, store: Store, publisher: Publisher
    ):
        broken = b"\xff{ password: hunter2"
        await store.commit(Put(KEYS.part(1, "storage"), broken))
        await publisher.put(1, "storage", {"uploadQuotaGb": 1})
        history = b"".join(e.value for e in (await store.read(KEYS.histories)).entries)
        assert base64.b64encode(broken) not in history
        assert "hunter2" not in repr(await publisher.history(1))
        await publisher.rollback(1, 0)
        assert (await publisher.read(1))["storage"] == UnreadablePart(broken)

    async def test_without_a_key_an_unreadable_value_stays_unchanged(self, store: Store):
        publisher = Publisher(store, ring=NO_KEY)
        await store.commit(Put(KEYS.part(1, "storage"), b"{one"))
        await publisher.change(1, lambda there: {"storage": UnreadablePart(b"{two"), "ftp/bob": {}})
        await publisher.rollback(1, 0)
        assert await publisher.read(1) == {"storage": UnreadablePart(b"{two")}

    async def test_a_deleted_tenant_is_restored_with_its_indexes(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        before = dict(await publisher.read(1))
        await publisher.delete(1)
        done = await publisher.rollback(1, 1)
        assert done.number == 3
        assert await publisher.read(1) == before
        await assert_consistent(store)
        assert [entry.action for entry in await publisher.history(1)] == [
            "publish",
            "delete",
            "rollback",
        ]
        await publisher.rollback(1, 0)
        assert await publisher.read(1) == {}
        await assert_consistent(store)

    async def test_a_rollback_does_not_take_names_that_belong_to_another_tenant(
        self, store: Store, publisher: Publisher
    ):
        await publisher.apply(document(1, "one"))
        await publisher.delete(1)
        await publisher.put(2, "ftp/one_ftp", {})
        before = await everything_of(store)
        with pytest.raises(Taken, match="'one_ftp' belongs to tenant 2"):
            await publisher.rollback(1, 1)
        assert await everything_of(store) == before

    @pytest.mark.parametrize("number", [-1, 3, 99])
    async def test_a_version_that_was_trimmed_is_refused(
        self, store: Store, publisher: Publisher, number: int
    ):
        await publisher.put(1, "storage", {"uploadQuotaGb": 1})
        await publisher.put(1, "storage", {"uploadQuotaGb": 2})
        with pytest.raises(NotConfigured, match=f"no version {number} "):
            await publisher.rollback(1, number)
        with pytest.raises(NotConfigured, match=r"no version 1 in its history$"):
            await publisher.rollback(7, 1)

    async def test_an_incomplete_history_allows_no_rollback(
        self, store: Store, publisher: Publisher
    ):
        for n in range(4):
            await publisher.put(1, "storage", {"uploadQuotaGb": n})
        await store.commit(Put(KEYS.history(1, 3), b"{"))
        with pytest.raises(NotConfigured, match="missing or unreadable"):
            await publisher.rollback(1, 1)
        await store.commit(Delete(key(KEYS.history(1, 3))))
        with pytest.raises(NotConfigured, match="missing or unreadable"):
            await publisher.rollback(1, 1)
        await store.commit(Delete(key(KEYS.history(1, 4))))
        with pytest.raises(NotConfigured, match="missing or unreadable"):
            await publisher.rollback(1, 1)
        assert (await publisher.put(1, "storage", {"uploadQuotaGb": 9})).number == 5

    async def test_a_rollback_to_a_password_of_a_lost_key_is_refused(self, store: Store):
        await Publisher(store, ring=RING).apply(document(1, "one"))
        await Publisher(store, ring=RING).put(1, "ftp/one_ftp", {"passwordHash": "hash-2"})
        other = Publisher(store, ring=Keyring([b"o" * 32]))
        before = await everything_of(store)
        with pytest.raises(Undecipherable):
            await other.rollback(1, 1)
        assert await everything_of(store) == before


class TestKeys:
    OLD, NEW, LOST = b"o" * 32, b"n" * 32, b"l" * 32

    async def test_rekey_seals_everything_again(self, store: Store):
        old = Publisher(store, ring=Keyring([self.OLD]))
        for tenant in (1, 2, 10):
            await old.apply(document(tenant))
        await old.put(2, "ftp/t2_ftp", {"passwordHash": "hash-2"})
        await old.delete(10)
        both = Publisher(store, ring=Keyring([self.NEW, self.OLD]))
        steps: list[tuple[int, int]] = []
        done = await both.rekey(lambda at, of: steps.append((at, of)))
        assert (done.tenants, done.problems) == (2, ())
        assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
        await assert_consistent(store)
        new = Publisher(store, ring=Keyring([self.NEW]))
        again = await new.rekey()
        assert (again.tenants, again.entries, again.problems) == (0, 0, ())
        await new.rollback(10, 1)
        await new.rollback(2, 1)
        ftp = cast(dict[str, JSON], (await new.read(2))["ftp/t2_ftp"])
        assert ftp["passwordHash"] == "hash-t2"
        database = cast(dict[str, JSON], (await new.read(10))["database/query"])
        sealed, of = str(database["passwordEncrypted"]), str(database["passwordKeyId"])
        assert Keyring([self.NEW]).unseal(sealed, of) == "pw-t10"

    async def test_secrets_that_cannot_be_decrypted_are_reported_and_stay(self, store: Store):
        await Publisher(store, ring=Keyring([self.LOST])).apply(document(1))
        await Publisher(store, ring=Keyring([self.OLD])).apply(document(2))
        before = await Publisher(store).read(1)
        both = Publisher(store, ring=Keyring([self.NEW, self.OLD]))
        done = await both.rekey()
        assert done.tenants == 1
        assert any("tenant 1: database/query" in problem for problem in done.problems)
        assert any("tenant 1: entry 1 of its history" in problem for problem in done.problems)
        assert not any("tenant 2" in problem for problem in done.problems)
        assert await both.read(1) == before

    async def test_plain_passwords_and_those_without_a_key_id_are_sealed(self, store: Store):
        await Publisher(store, ring=NO_KEY).apply(document(1))
        sealed, _ = Keyring([self.OLD]).seal("pw")
        foreign = {"driver": "x", "database": "x", "passwordEncrypted": sealed}
        await store.commit(Put(KEYS.part(1, "database/go"), msgspec.json.encode(foreign)))
        done = await Publisher(store, ring=Keyring([self.NEW, self.OLD])).rekey()
        assert (done.tenants, done.problems) == (1, ())
        raw = b"".join((await everything_of(store)).values())
        assert b"pw-t1" not in raw
        assert sealed.encode() not in raw

    @in_memory
    @pytest.mark.parametrize("how", ["stop", "before", "after"])
    async def test_rekey_can_be_interrupted_and_repeated(self, store: Store, how: str):
        old = Publisher(store, ring=Keyring([self.OLD]))
        for tenant in range(1, 6):
            await old.apply(document(tenant))
        ring = Keyring([self.NEW, self.OLD])
        for after in (0, 1, 2, 3):
            try:
                await with_faults(store, after, how, ring).rekey()
            except (Stopped, OutcomeUnknown):
                continue
        done = await Publisher(store, ring=ring).rekey()
        assert done.problems == ()
        again = await Publisher(store, ring=Keyring([self.NEW])).rekey()
        assert (again.tenants, again.entries, again.problems) == (0, 0, ())
        await assert_consistent(store)

    async def test_a_tenant_with_a_conflict_does_not_block_the_others(self, store: Store):
        old = Publisher(store, ring=Keyring([self.OLD]))
        for tenant in (1, 2, 3):
            await old.apply(document(tenant))
        await store.commit(Put(KEYS.part(1, "domain/primary"), b"t2.example.com"))
        done = await Publisher(store, ring=Keyring([self.NEW, self.OLD])).rekey()
        assert done.tenants == 2
        assert any("'t2.example.com' belongs to tenant 2" in problem for problem in done.problems)

    async def test_rekey_requires_a_key(self, store: Store):
        with pytest.raises(InvalidRequest, match="MOORING_ENCRYPTION_KEY"):
            await Publisher(store, ring=NO_KEY).rekey()

    async def test_a_sealed_password_does_not_become_plain(self, store: Store):
        await Publisher(store, ring=RING).apply(document(1))
        plain = Publisher(store, ring=NO_KEY)
        with pytest.raises(InvalidRequest, match=r"database/query\.password .*clear text"):
            await plain.put(1, "database/query", {"driver": "x", "database": "x", "password": "y"})
        await plain.put(1, "database/query", {"driver": "x", "database": "x"})
        kept = cast(dict[str, JSON], (await plain.read(1))["database/query"])
        assert RING.unseal(str(kept["passwordEncrypted"])) == "pw-t1"
