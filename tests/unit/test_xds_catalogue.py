"""Host names become addresses, and are resolved again from time to time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from mooring.model import Instance
from mooring.xds.catalogue import RESOLVE_INTERVAL, HostResolver

NAMED = Instance("echo", "echo.example", 80)


class NameServer:
    def __init__(self, address: str) -> None:
        self.address, self.asked = address, 0

    async def getaddrinfo(self, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        if not self.address:
            raise socket.gaierror("no such host")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.address, 0))]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    made = NameServer("10.0.0.7")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", made.getaddrinfo)
    return made


def addresses(instances: tuple[Instance, ...]) -> list[str]:
    return [instance.host for instance in instances]


async def test_only_names_are_looked_up(names: NameServer):
    numbered = Instance("echo", "10.0.0.1", 80)
    assert await HostResolver().resolve((numbered,)) == (numbered,)
    assert names.asked == 0
    assert addresses(
        await HostResolver().resolve(
            (
                numbered,
                NAMED,
            )
        )
    ) == ["10.0.0.1", "10.0.0.7"]


async def test_a_name_is_looked_up_again_after_a_while(names: NameServer):
    hosts = HostResolver()
    for _ in range(3):
        await hosts.resolve((NAMED,))
    assert names.asked == 1
    names.address = "10.0.0.8"
    await asyncio.sleep(RESOLVE_INTERVAL)
    assert addresses(await hosts.resolve((NAMED,))) == ["10.0.0.8"]


async def test_an_address_is_kept_while_the_name_server_is_unavailable(names: NameServer):
    hosts = HostResolver()
    await hosts.resolve((NAMED,))
    names.address = ""
    await asyncio.sleep(RESOLVE_INTERVAL)
    assert addresses(await hosts.resolve((NAMED,))) == ["10.0.0.7"]


async def test_an_unknown_host_is_omitted(names: NameServer, caplog: pytest.LogCaptureFixture):
    names.address = ""
    hosts = HostResolver()
    assert await hosts.resolve((NAMED,)) == ()
    await asyncio.sleep(RESOLVE_INTERVAL)
    assert await hosts.resolve((NAMED,)) == ()
    (line,) = caplog.messages  # once
    assert "cannot resolve the host echo.example; omitting its instances" in line
