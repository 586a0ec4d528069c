"""The Maintenance and Cluster services. Maintenance of the files is done with the CLI."""

from __future__ import annotations

import asyncio
import time
import zlib
from functools import partial
from itertools import islice
from typing import Any

import grpc.aio

from mooring.etcd_server.errors import RpcAborted, not_served
from mooring.etcd_server.messages import MEMBER_ID, RAFT_TERM, header
from mooring.store.contract import Entry, Range
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd import proto

VERSION = "3.5.13"
"""The etcd version that clients see. They use it to detect features: since 3.5.13, as here, a
progress notification is sent only after all events that it covers."""

_SLICE = 10_000  # keys that are hashed before other tasks run

_BACKUP = "`mooring store backup PATH`, on the machine of the server, copies it while it runs"
SNAPSHOT = not_served("snapshots", _BACKUP)
DEFRAGMENT = not_served(
    "defragmentation", f"free space is reused automatically ({_BACKUP}, without the free space)"
)
ALARMS = not_served("alarms other than NOSPACE", "use NOSPACE")


class MaintenanceService:
    def __init__(self, runner: EngineRunner) -> None:
        self._runner = runner

    async def status(self, request: Any) -> Any:
        """Includes the server's time. (etcd sends it in HTTP/1.1 responses.)"""
        revision, (size, in_use) = self._runner.revision, self._runner.space()
        full = self._runner.read(lambda engine: engine.out_of_space)
        return proto.StatusResponse(
            header=header(revision),
            version=VERSION,
            dbSize=size,
            dbSizeInUse=in_use,
            leader=MEMBER_ID,
            raftTerm=RAFT_TERM,
            raftIndex=revision,
            raftAppliedIndex=revision,
            mooring_time=time.time(),
            errors=[f"memberID:{MEMBER_ID} alarm:NOSPACE "] if full else [],
        )

    async def alarm(self, request: Any) -> Any:
        """etcd's alarm NOSPACE. There is one member, and no other alarm."""
        ours = request.memberID in (0, MEMBER_ID) and request.alarm in (0, proto.NOSPACE)
        if request.action == proto.ALARMS_GET:
            was = ours and self._runner.read(lambda engine: engine.out_of_space)
        elif request.action == proto.ALARM_ACTIVATE and request.alarm != proto.NOSPACE:
            raise RpcAborted(ALARMS)
        else:
            ours = ours and request.alarm == proto.NOSPACE
            set_to = request.action == proto.ALARM_ACTIVATE

            def change(engine: Engine, _: float) -> bool:
                changed = ours and engine.out_of_space != set_to
                if changed:
                    engine.out_of_space = set_to
                return changed

            was = await self._runner.write(change)
        alarms = [proto.AlarmMember(memberID=MEMBER_ID, alarm=proto.NOSPACE)] if was else []
        return proto.AlarmResponse(header=header(self._runner.revision), alarms=alarms)

    async def hash(self, request: Any) -> Any:
        revision, checksum = await self._hash(0)
        return proto.HashResponse(header=header(revision), hash=checksum)

    async def hash_kv(self, request: Any) -> Any:
        """A checksum of all entries at a revision (0: the current one). It differs from etcd's, but
        can be compared with that of another Mooring server."""
        revision, checksum = await self._hash(request.revision)
        compacted = self._runner.read(lambda engine: engine.compacted)
        return proto.HashKVResponse(
            header=header(revision), hash=checksum, compact_revision=compacted
        )

    async def snapshot(self, _: grpc.aio.ServicerContext) -> None:
        raise RpcAborted(SNAPSHOT)

    async def defragment(self, request: Any) -> Any:
        raise RpcAborted(DEFRAGMENT)

    async def _hash(self, revision: int) -> tuple[int, int]:
        newest = self._runner.revision
        revision = revision if revision > 0 else newest
        checksum, start = 0, b"\0"
        while entries := self._runner.read(partial(_slice, start=start, revision=revision)):
            for entry in entries:
                checksum = zlib.crc32(_bytes(entry), checksum)
            start = entries[-1].key + b"\0"
            await asyncio.sleep(0)
        return newest, checksum


def _slice(engine: Engine, start: bytes, revision: int) -> list[Entry]:
    return list(islice(engine.past(Range(start, b""), revision), _SLICE))


def _bytes(entry: Entry) -> bytes:
    numbers = (entry.created, entry.modified, entry.version, entry.lease, len(entry.key))
    return repr(numbers).encode() + entry.key + entry.value


MEMBERS = not_served("changes of members", "this is a single node; use etcd for a cluster")


class ClusterService:
    def __init__(self, url: str) -> None:
        self._url = url

    async def member_list(self, request: Any) -> Any:
        """Clients that synchronise their endpoints continue with this URL. The header has no
        revision, because members are not part of the store."""
        member = proto.Member(ID=MEMBER_ID, name="mooring", clientURLs=[self._url])
        return proto.MemberListResponse(header=header(0), members=[member])
