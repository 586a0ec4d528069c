"""A publisher in a separate process: `python -m tests.faults.tenant_publishers URL WHAT …`."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from mooring.backends import open_store
from mooring.errors import NotConfigured, Taken
from mooring.model import JSON
from mooring.tenants.document import Document, parse
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.secrets import Keyring

CROWD = (1, 10, 11, 2)
"""Tenants that all publishers write concurrently: the id of one is a prefix of others."""


def stamped(tenant: int, stamp: str, names: int) -> Document:
    """A tenant whose parts all carry one stamp. `names` selects its names."""
    code = f"t{tenant}_{names}"
    mark: JSON = {"stamp": stamp}
    return parse(
        {
            "id": tenant,
            "meta": {"code": code, "name": f"租户 {code}", "extra": mark},
            "domain": {"primary": f"t{tenant}-{names}.example", "aliases": [f"a{tenant}.example"]},
            "database": {"query": {"driver": "x", "database": "x", "extra": mark}},
            "ftp": {
                f"u{tenant}.{names}": {"extra": mark},
                f"u{tenant}": {"extra": mark},
                f"shared{names}": {"extra": mark},
            },
            "storage": {"extra": mark},
        }
    )


async def crowd(publisher: Publisher, me: str, seconds: float) -> dict[str, int]:
    """Publish, rename and delete at random. All tenants want the FTP users `shared…`."""
    chance = random.Random(me)
    done = {"published": 0, "deleted": 0, "taken": 0, "misled": 0}
    ends = time.monotonic() + seconds
    count = 0
    while time.monotonic() < ends:
        tenant = chance.choice(CROWD)
        count += 1
        try:
            if chance.random() < 0.25:
                await publisher.delete(tenant)
                done["deleted"] += 1
            else:
                document = stamped(tenant, f"{me}.{count}", chance.randrange(3))
                done["published"] += bool((await publisher.apply(document)).changes)
        except Taken as error:
            done["taken" if error.holder in {*CROWD} - {tenant} else "misled"] += 1
        except NotConfigured:
            pass
    return done


async def parts(publisher: Publisher, me: str, count: int) -> dict[str, int]:
    """Change an own part of a tenant that all publishers change."""
    for n in range(1, count + 1):
        await publisher.put(1, f"ftp/{me}.{n}", {"description": f"{n}"})
        await publisher.put(1, f"database/own-{me}", {"driver": "x", "database": f"{n}"})
    return {"published": 2 * count}


async def main(url: str, what: str, me: str, how: str) -> dict[str, int]:
    async with open_store(url) as store:
        publisher = Publisher(store, ring=Keyring([b"k" * 32]), by=me, keep=50)
        if what == "crowd":
            return await crowd(publisher, me, float(how))
        return await parts(publisher, me, int(how))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
