"""Taking a lock from who holds it, as an operator: its key is deleted, and nothing else.

The holder learns that the lock is lost as soon as it hears of the store, as it does where its lease
ran out; who waits next has it then. A lease is left alone: other things may hang on it.
"""

from __future__ import annotations

from mooring.errors import Conflict
from mooring.locks.observing import Contender, LockInfo, locks
from mooring.store.contract import Delete, Store, created_at, key


async def look(store: Store, name: str) -> LockInfo | None:
    """One lock, by its whole name; None where nobody contends for it."""
    return next((each for each in await locks(store, name) if each.name == name), None)


async def release(store: Store, name: str, lease: int, *, token: int = 0) -> Contender | None:
    """Take a lock from the holder with this lease, and with a `token` only if it is that very one;
    who it was. None where nobody holds it so: nothing was changed then."""
    while True:
        found = await look(store, name)
        for holder in () if found is None else found.holders:
            if holder.lease == lease and token in (0, holder.token):
                break
        else:
            return None
        try:
            await store.commit(
                Delete(key(holder.key)), require=[created_at(holder.key, holder.token)]
            )
            return holder
        except Conflict:
            continue  # it left, and may have come back
