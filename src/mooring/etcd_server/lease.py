"""The Lease service."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from mooring.errors import LeaseNotFound, MooringError
from mooring.etcd_server.errors import LEASE_EXISTS, TTL_TOO_LARGE, RpcAborted, RpcStatus
from mooring.etcd_server.messages import header
from mooring.store.contract import MAX_TTL
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd import proto
from mooring.tasks import Tasks

MIN_TTL = 2
"""The shortest TTL in seconds: that of etcd with its default election timeout."""

_Renewal = asyncio.Task[object] | RpcStatus | None
_RENEWING = 128  # renewals in progress on one stream


class LeaseService:
    def __init__(self, runner: EngineRunner) -> None:
        self._runner = runner

    async def grant(self, request: Any) -> Any:
        if request.TTL > MAX_TTL:
            raise RpcAborted(TTL_TOO_LARGE)
        ttl = max(request.TTL, MIN_TTL)

        def grant(engine: Engine, now: float) -> tuple[int, int]:
            if request.ID in engine.leases:
                raise RpcAborted(LEASE_EXISTS)
            return engine.grant(ttl, now, request.ID), engine.revision

        lease, revision = await self._runner.write(grant)
        return proto.LeaseGrantResponse(header=header(revision), ID=lease, TTL=ttl)

    async def revoke(self, request: Any) -> Any:
        def revoke(engine: Engine, now: float) -> int:
            engine.revoke(request.ID, now)
            return engine.revision

        return proto.LeaseRevokeResponse(header=header(await self._runner.write(revoke)))

    async def time_to_live(self, request: Any) -> Any:
        """The remaining seconds; -1 for an unknown lease."""

        def look(engine: Engine) -> Any:
            answer = proto.LeaseTimeToLiveResponse(
                header=header(engine.confirmed), ID=request.ID, TTL=-1
            )
            if (held := engine.leases.seen(request.ID)) is not None:
                left = int(held.deadline - self._runner.now())
                answer.TTL, answer.grantedTTL = max(left, 0), held.ttl
                if request.keys:
                    answer.keys.extend(sorted(held.keys))
            return answer

        return self._runner.read(look)

    async def leases(self, request: Any) -> Any:
        """The active leases, by deadline."""

        def look(engine: Engine) -> Any:
            due = sorted(engine.leases, key=lambda lease: engine.leases[lease].deadline)
            statuses = [proto.LeaseStatus(ID=lease) for lease in due]
            return proto.LeaseLeasesResponse(header=header(engine.confirmed), leases=statuses)

        return self._runner.read(look)

    async def keepalive(self, context: grpc.aio.ServicerContext) -> None:
        """Renewals, answered in order. Concurrent renewals share one write to disk."""
        tasks = Tasks()
        renewing: asyncio.Queue[_Renewal] = asyncio.Queue(_RENEWING)

        async def receive() -> None:
            while (request := await context.read()) is not grpc.aio.EOF:
                if isinstance(request, RpcStatus):
                    await renewing.put(request)
                    return
                await renewing.put(tasks.start(self._renew(request.ID), name="renewal of a lease"))
            await renewing.put(None)

        tasks.start(receive(), name="requests for renewals")
        try:
            while (renewal := await renewing.get()) is not None:
                if isinstance(renewal, RpcStatus):
                    raise RpcAborted(renewal)
                answer = await renewal
                if isinstance(answer, MooringError):
                    raise answer
                await context.write(answer)
        finally:
            await tasks.aclose()

    async def _renew(self, lease: int) -> Any:
        """The response to one renewal. Its revision was read before, so that no client concludes
        that a lease was active at the revision that revoked it."""
        revision = self._runner.revision
        try:
            ttl = await self._runner.write(lambda engine, now: engine.renew(lease, now))
        except LeaseNotFound:
            ttl = 0
        except MooringError as error:
            return error  # raised by the consumer: it does not crash this task
        return proto.LeaseKeepAliveResponse(header=header(revision), ID=lease, TTL=ttl)
