"""Channels for asyncio: one of gRPC's own to each instance, and a choice at each call."""

from __future__ import annotations

from mooring.grpc.aio.channel import Channel, channel

__all__ = ["Channel", "channel"]
