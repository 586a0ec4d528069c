"""Many tenants that `mooring tenant publish` publishes concurrently."""

from __future__ import annotations

from typing import cast

import pytest

from mooring.errors import Unavailable
from mooring.store import Store
from mooring.tenants.document import parse
from mooring.tenants.publish.batch import PublishBatch
from mooring.tenants.publish.publisher import Publisher
from tests.features.tenant_files import Interrupted, document
from tests.features.tenant_publisher.support import RING


class Away(Interrupted):
    """A store that accepts two writes and no more."""

    writes = 0

    async def commit(self, *writes, **options):
        self.writes += bool(writes)
        if writes and self.writes > 2:
            raise Unavailable("nothing listens")
        return await self._store.commit(*writes, **options)


async def test_failures_are_reported_although_the_store_became_unavailable(
    store: Store, publisher: Publisher
):
    await publisher.apply(document(7, "taken"))
    codes = ["taken", *(f"c{number}" for number in range(40))]
    documents = [
        parse({"id": id, "meta": {"code": code, "name": code}}) for id, code in enumerate(codes, 10)
    ]
    batch = PublishBatch(documents, "", None, dry_run=False)
    leaving = Publisher(cast(Store, Away(store, 0, "")), ring=RING)
    with pytest.raises(Unavailable):
        await batch.run(leaving, lambda done, total: None)
    assert str(batch.failures[0]).startswith("tenant 10: the code 'taken' belongs")
    assert 0 < len(batch.results()) <= 2
