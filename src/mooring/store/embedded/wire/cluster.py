"""The Cluster service: one member, for good."""

from __future__ import annotations

from typing import Any

from mooring.store.embedded.wire.errors import not_served
from mooring.store.embedded.wire.messages import MEMBER_ID, header
from mooring.store.etcd import proto

MEMBERS = not_served("changes of members", "it is a single node; with etcd you can have more")


class Cluster:
    def __init__(self, url: str) -> None:
        self._url = url

    async def member_list(self, request: Any) -> Any:
        """Clients that synchronise their endpoints go on with the URL that stands here.

        Members are no matter of the store, so the header has no revision.
        """
        member = proto.Member(ID=MEMBER_ID, name="mooring", clientURLs=[self._url])
        return proto.MemberListResponse(header=header(0), members=[member])
