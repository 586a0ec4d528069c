"""Channels for threads: one of gRPC's own to all instances, and another when they change."""

from __future__ import annotations

from mooring.grpc.blocking.channel import Channel, channel

__all__ = ["Channel", "channel"]
