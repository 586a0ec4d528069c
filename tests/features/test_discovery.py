"""A live view of a service: followed, picked from, kept through failures, saved on disk."""

from __future__ import annotations

import asyncio
import errno
import io
import socket
import ssl
import stat
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

import mooring
from mooring import Instance, Resilience
from mooring.discovery.last_known_good import InstanceCache
from mooring.discovery.resilience import blames
from mooring.errors import Closed, InvalidRequest, NoInstance, Unavailable
from mooring.hub import Hub
from mooring.mirror import Update
from mooring.settings import MetricsSettings, RegistrySettings
from mooring.store import Delete, prefix
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually, retried_at_once

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with mooring.connect() as opened:
        yield opened


def at(port: int, **fields: object) -> Instance:
    return Instance("echo", "10.0.0.1", port, **fields)  # type: ignore[arg-type]


def copies_of(service: str, cache: Path) -> list[Path]:
    return list(cache.glob(f"{service}.*.json"))


def called(view: mooring.discovery.view.View) -> list[int]:
    return sorted(member.instance.port for member in view.rotation if member.in_rotation)


def fail(view: mooring.discovery.view.View, port: int) -> None:
    """Let a call to an instance fail."""
    node = next(member.node for member in view.rotation if member.instance.port == port)
    view.rotation.picker.started(node)
    view.rotation.finished(node, 0.01, False, time.monotonic())


async def test_the_snapshot_has_a_mark_an_age_and_is_not_stale(hub: Hub):
    async with hub.register(at(1)), hub.discover("echo") as view:
        seen = view.seen
        assert [instance.port for instance in seen.instances] == [1]
        assert 0 < seen.mark <= (await hub.store.read(prefix(b"/registry/"))).revision
        assert seen.age < 5
        assert not seen.stale

        async def up_to_date() -> bool:
            return view.seen.mark == (await hub.store.read(prefix(b"/registry/"))).revision

        await eventually(up_to_date)


async def test_changes_can_be_iterated_and_subscribed_to(hub: Hub):
    seen: list[int] = []
    async with hub.discover("echo") as view:
        end = view.subscribe(lambda update: seen.append(len(update.changes)))
        async with view.changes() as changes, hub.register(at(1)):
            async with asyncio.timeout(20):
                update = await anext(changes)
            assert update.changes[0].before is None
            assert update.changes[0].after is not None
            assert update.changes[0].after.port == 1
        end()
        count = len(seen)
        async with hub.register(at(2)):
            await eventually(lambda: called(view) == [2])
        assert len(seen) == count


async def test_an_early_subscriber_sees_the_state_after_the_change(hub: Hub):
    seen: list[tuple[set[str], set[str]]] = []
    view = hub.discover("echo")

    def on_update(update: Update[str, Instance]) -> None:
        changed = {change.key for change in update.changes}
        seen.append((changed, {instance.id for instance in view.instances}))

    view.subscribe(on_update)
    async with hub.register(at(1)), view, hub.register(at(2)):
        await view.wait(2, timeout=20)
        assert all(changed <= ids for changed, ids in seen)
        assert {id for changed, _ in seen for id in changed} == {"10.0.0.1:1", "10.0.0.1:2"}


def shown(metric: str) -> float | None:
    return REGISTRY.get_sample_value(f"mooring_view_{metric}", {"service": "echo"})


async def test_a_view_has_metrics_while_it_is_open(hub: Hub):
    assert shown("instances") is None
    async with hub.register(at(1)), hub.discover("echo") as view:
        async with hub.register(at(2)), hub.discover("echo", version="2"):
            await view.wait(2, timeout=20)
            assert (shown("instances"), shown("stale")) == (2, 0)
        assert shown("stale") == 0
    assert shown("instances") is None
    assert shown("stale") is None


async def test_calls_are_distributed_by_weight(hub: Hub):
    calm = Resilience(slow_start=0)
    async with (
        hub.register(at(1, weight=5)),
        hub.register(at(2, weight=3)),
        hub.register(at(3, weight=2)),
        hub.discover("echo", policy="weighted", resilience=calm) as view,
    ):
        counts: Counter[int] = Counter()
        for _ in range(100):
            async with view.pick() as instance:
                counts[instance.port] += 1
        assert counts == {1: 50, 2: 30, 3: 20}


async def test_an_unreachable_instance_is_ejected_for_a_while(hub: Hub):
    async with (
        hub.register(at(1)),
        hub.register(at(2)),
        hub.register(at(3)),
        hub.discover("echo", policy="round_robin") as view,
    ):
        for _ in range(30):
            try:
                async with view.pick() as instance:
                    if instance.port == 1:
                        raise ConnectionRefusedError
            except ConnectionRefusedError:
                pass
        assert called(view) == [2, 3]
        explanations = {e.instance.port: str(e) for e in view.explain()}
        assert "ejected: calls to it failed" in explanations[1]


async def test_a_failed_call_is_repeated_on_another_instance(hub: Hub):
    async def work(instance: Instance) -> int:
        if instance.port == 1:
            raise ConnectionRefusedError
        return instance.port

    async with hub.register(at(1)), hub.register(at(2)), hub.discover("echo") as view:
        assert {await view.call(work) for _ in range(20)} == {2}

        async def broken(instance: Instance) -> None:
            raise ConnectionResetError(instance.port)

        with pytest.raises(ConnectionResetError):
            await view.call(broken)

        async def wrong(instance: Instance) -> None:
            raise KeyError(instance.port)

        with pytest.raises(KeyError):
            await view.call(wrong)


async def test_retries_stay_within_their_budget(hub: Hub):
    calls = 0

    async def broken(_: Instance) -> None:
        nonlocal calls
        calls += 1
        raise ConnectionResetError

    strict = Resilience(retry_ratio=0.1, retry_least=0, ejected_share=0)
    async with (
        hub.register(at(1)),
        hub.register(at(2)),
        hub.discover("echo", resilience=strict) as view,
    ):
        for _ in range(100):
            with pytest.raises(ConnectionResetError):
                await view.call(broken)
    assert calls == 110


async def test_an_error_of_the_caller_blames_no_instance(hub: Hub):
    async with hub.register(at(1)), hub.register(at(2)), hub.discover("echo") as view:
        for _ in range(30):
            with pytest.raises(KeyError):
                async with view.pick():
                    raise KeyError("mine")
        assert called(view) == [1, 2]


class Failed(OSError):
    """An error with a number, but of a type of its own, as in many libraries."""


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 5),
        socket.gaierror(socket.EAI_NONAME, "no such host"),
        ssl.SSLCertVerificationError("expired"),
        OSError(errno.EHOSTUNREACH, "no route to host"),
        OSError("Multiple exceptions: refused, refused"),
        Failed(errno.ECONNRESET, "reset"),
        Failed(),
    ],
    ids=repr,
)
def test_connection_errors_are_blamed_on_the_instance(error: Exception):
    assert blames(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no such file"),
        FileNotFoundError("no such template"),
        PermissionError(errno.EACCES, "not allowed"),
        OSError(errno.ENOSPC, "disk full"),
        OSError(errno.EMFILE, "too many open files"),
        OSError(errno.EADDRNOTAVAIL, "no local port is left"),
        io.UnsupportedOperation("not writable"),
        KeyError("mine"),
    ],
    ids=repr,
)
def test_local_errors_are_not_blamed_on_the_instance(error: Exception):
    assert not blames(error)


async def test_pick_works_without_async(hub: Hub):
    async with hub.register(at(1)), hub.discover("echo") as view:
        with view.pick() as instance:
            assert instance.port == 1


async def test_no_instance_is_an_error_in_plain_words(hub: Hub):
    async with hub.discover("echo") as view:
        with pytest.raises(NoInstance, match=r"^echo: no instance is registered"):
            async with view.pick():
                pass
        with pytest.raises(NoInstance, match="0 of 1 required instances of echo can be called"):
            await view.wait(timeout=0.05)


@pytest.mark.real_time
@pytest.mark.parametrize("way", ["pick", "call"])
async def test_retrying_without_a_pause_does_not_starve_the_loop(hub: Hub, way: str):
    async with hub.discover("echo") as view:

        async def pick() -> None:
            async with view.pick():
                pass

        async def call() -> None:
            await view.call(lambda _: asyncio.sleep(0))

        await retried_at_once(pick if way == "pick" else call, NoInstance)


async def test_waiting_for_instances(hub: Hub):
    async with hub.discover("echo") as view:
        waiting = asyncio.ensure_future(view.wait(2, timeout=20))
        async with hub.register(at(1)), hub.register(at(2)):
            await waiting


async def test_waiting_counts_instances_of_other_zones(hub: Hub):
    async with (
        hub.register(at(1, zone="a")),
        hub.register(at(2, zone="b")),
        hub.discover("echo", zone="a") as view,
    ):
        await view.wait(2, timeout=20)
        assert called(view) == [1]


async def test_waiting_ends_when_an_ejection_does(hub: Hub):
    soon = Resilience(
        consecutive_failures=1, ejection=0.5, recovery_spacing=0, slow_start=0, panic_threshold=0
    )
    async with hub.register(at(1)), hub.register(at(2)), hub.discover("echo", resilience=soon) as v:
        fail(v, 1)
        assert called(v) == [2]
        await v.wait(2, timeout=20)
        assert called(v) == [1, 2]


@pytest.mark.parametrize("what", ["view", "hub"])
async def test_waiting_ends_when_the_view_or_its_hub_is_closed(what: str):
    async with mooring.connect() as hub, hub.discover("echo") as view:
        waiting = asyncio.ensure_future(view.wait())
        await asyncio.sleep(0)
        await (view.aclose() if what == "view" else hub.__aexit__())
        async with asyncio.timeout(20):
            with pytest.raises(Closed, match="view of echo"):
                await waiting


async def test_a_long_ejection_delays_nothing_else(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    long = Resilience(
        consecutive_failures=1, ejection=90, slow_start=4, recovery_spacing=0, panic_threshold=0
    )
    async with (
        hub.register(at(1)),
        hub.register(at(2)),
        hub.register(at(3)),
        hub.discover("echo", resilience=long) as view,
    ):
        fail(view, 1)
        pauses: list[float] = []
        tick = view.rotation.tick

        def noted(now: float) -> float | None:
            pause = tick(now)
            pauses.append(pause or 0.0)
            return pause

        monkeypatch.setattr(view.rotation, "tick", noted)
        await eventually(lambda: bool(pauses))
        assert pauses[0] > 50
        async with hub.register(at(4)):
            await view.wait(3, timeout=20)
            node = next(member.node for member in view.rotation if member.instance.port == 4)
            assert node.weight < 1
            await eventually(lambda: node.weight == 1)


async def test_draining_and_disabled_instances_are_not_called(hub: Hub):
    async with hub.register(at(1)) as one, hub.register(at(2)), hub.discover("echo") as view:
        await hub.registry.configure("echo", "10.0.0.1:2", set={"enabled": False})
        await eventually(lambda: called(view) == [1])
        await hub.registry.configure("echo", "10.0.0.1:2", set={}, unset=("enabled",))
        await eventually(lambda: called(view) == [1, 2])
        await one.drain(linger=0)
        await eventually(lambda: called(view) == [2])


@pytest.mark.parametrize("empty", ["accept", "keep"])
async def test_an_empty_service(hub: Hub, empty: str):
    async with hub.discover("echo", empty=empty) as view:  # type: ignore[arg-type]
        async with hub.register(at(1)):
            await eventually(lambda: called(view) == [1])
        if empty == "accept":
            await eventually(lambda: not view.instances)
            return
        await eventually(lambda: view.seen.kept)
        assert called(view) == [1]
        async with hub.register(at(2)):
            await eventually(lambda: called(view) == [2])
        assert not view.stale


async def test_an_unknown_policy_is_refused_with_a_suggestion(hub: Hub):
    with pytest.raises(InvalidRequest, match="did you mean 'round_robin'"):
        hub.discover("echo", policy="roundrobin")


async def test_explain_without_a_view(hub: Hub):
    async with hub.register(at(1, zone="a")), hub.register(at(2, zone="b")):
        called_ports = {e.instance.port: e.called for e in await hub.explain("echo", zone="a")}
        assert called_ports == {1: True, 2: False}


async def test_an_invalid_record_hides_no_instance(hub: Hub):
    async with hub.register(at(1)), hub.discover("echo") as view:
        from mooring.store import Put

        await hub.store.commit(Put(b"/registry/default/echo/10.0.0.1:9/data", b"{"))
        async with hub.register(at(2)):
            await eventually(lambda: called(view) == [1, 2])


class TestUnavailableRegistry:
    @pytest.mark.deadline
    async def test_consumers_continue_and_the_view_is_stale(
        self, etcd: Callable[[str], EtcdServer], tmp_path: Path
    ):
        server = etcd("3.5")
        async with FaultProxy(server.url.removeprefix("etcd://")) as proxy:
            name = f"namespace=/{tmp_path.name}"
            async with (
                mooring.connect(f"{server.url}?{name}") as near,
                mooring.connect(f"etcd://{proxy.address}?{name}&timeout=1s") as far,
                near.register(at(1)),
                far.discover("echo") as view,
            ):
                proxy.blackhole()
                await eventually(lambda: view.stale, within=5)
                assert shown("stale") == 1
                async with view.pick() as instance:
                    assert instance.port == 1
                async with near.register(at(2)):
                    proxy.heal()
                    await eventually(lambda: called(view) == [1, 2], within=2)
                    await eventually(lambda: not view.stale, within=2)

    async def test_a_cold_start_uses_the_copy_on_disk(
        self, etcd: Callable[[str], EtcdServer], tmp_path: Path
    ):
        server = etcd("3.5")
        async with FaultProxy(server.url.removeprefix("etcd://")) as proxy:
            url = f"etcd://{proxy.address}?namespace=/{tmp_path.name}&timeout=1s"
            cache = tmp_path / "cache"
            async with mooring.connect(url, cache=cache) as hub, hub.register(at(1)):
                async with hub.discover("echo"):
                    await eventually(lambda: bool(copies_of("echo", cache)))
                (file,) = copies_of("echo", cache)
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
            proxy.refuse()
            async with mooring.connect(url, cache=cache, layout="plain:/other/") as hub:
                with pytest.raises(Unavailable):  # another cluster, whose instances are not these
                    async with hub.discover("echo", wait=1):
                        pass
            async with mooring.connect(url, cache=cache) as hub, hub.discover("echo") as view:
                assert view.stale
                async with view.pick() as instance:
                    assert instance.port == 1
                near = mooring.connect(f"{server.url}?namespace=/{tmp_path.name}")
                async with near, near.register(at(2)):
                    proxy.heal()
                    await eventually(lambda: not view.stale and called(view) == [2])

    async def test_after_a_start_from_disk_the_difference_to_the_copy_is_reported(
        self, etcd: Callable[[str], EtcdServer], tmp_path: Path
    ):
        server = etcd("3.5")
        async with FaultProxy(server.url.removeprefix("etcd://")) as proxy:
            name = f"namespace=/{tmp_path.name}"
            url, cache = f"etcd://{proxy.address}?{name}&timeout=1s", tmp_path / "cache"
            async with mooring.connect(f"{server.url}?{name}") as near, near.register(at(1)):
                async with (
                    near.register(at(2)),
                    mooring.connect(url, cache=cache) as far,
                    far.discover("echo"),
                ):
                    await eventually(lambda: bool(copies_of("echo", cache)))
                proxy.refuse()
                async with (
                    mooring.connect(url, cache=cache) as far,
                    far.discover("echo") as view,
                    near.register(at(3)),
                ):
                    known = {instance.id for instance in view.instances}
                    assert known == {"10.0.0.1:1", "10.0.0.1:2"}
                    async with view.changes() as changes, asyncio.timeout(30):
                        proxy.heal()
                        async for update in changes:
                            for change in update.changes:
                                (known.discard if change.after is None else known.add)(change.key)
                            if known == {instance.id for instance in view.instances}:
                                break
                    assert known == {"10.0.0.1:1", "10.0.0.1:3"}

    @pytest.mark.real_time
    async def test_changes_while_the_copy_is_saved_are_saved_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        saved: list[int] = []
        disk = threading.Event()

        def save(self: InstanceCache, instances: tuple[Instance, ...]) -> None:
            saved.append(len(instances))
            disk.wait(30)

        monkeypatch.setattr(InstanceCache, "save", save)
        quiet = RegistrySettings(metrics=MetricsSettings(enabled_metrics=()))
        async with (
            mooring.connect(cache=tmp_path, settings=quiet) as hub,
            hub.register(at(1)),
            hub.discover("echo") as view,
        ):
            await eventually(lambda: saved == [1])
            async with hub.register(at(2)):
                await view.wait(2, timeout=20)
                disk.set()
                await eventually(lambda: saved == [1, 2])

    @pytest.mark.real_time
    async def test_a_start_without_a_copy_states_the_reason(self, tmp_path: Path):
        async with mooring.connect("etcd://127.0.0.1:1?timeout=1s", cache=tmp_path) as hub:
            with pytest.raises(Unavailable, match="instances of echo cannot be read"):
                async with hub.discover("echo", wait=1):
                    pass

    @pytest.mark.real_time
    async def test_a_view_that_opens_while_its_hub_closes_fails_at_once(self):
        hub = await mooring.connect("etcd://127.0.0.1:1?timeout=500ms").__aenter__()
        view = hub.discover("echo", wait=60)
        opening = asyncio.ensure_future(view.__aenter__())
        await eventually(lambda: view._mirror.error is not None)
        await hub.__aexit__()
        async with asyncio.timeout(20):
            with pytest.raises(Closed):
                await opening
            with pytest.raises(Closed):
                await view.__aenter__()

    async def test_a_damaged_copy_is_not_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        url = f"memory://{tmp_path.name}"
        async with (
            mooring.connect(url, cache=tmp_path) as hub,
            hub.register(at(1)),
            hub.discover("echo"),
        ):
            await eventually(lambda: bool(copies_of("echo", tmp_path)))
        for file in copies_of("echo", tmp_path):
            file.write_text('{"service":')
        async with mooring.connect(url, cache=tmp_path) as hub, hub.discover("echo") as view:
            assert view.instances == ()
        assert "cannot be used" in caplog.text


async def test_keys_deleted_by_another_program_are_restored_and_stay_in_the_view(hub: Hub):
    async with hub.register(at(1)), hub.discover("echo") as view:
        await eventually(lambda: called(view) == [1])
        await hub.store.commit(Delete(prefix(b"/registry/")))

        async def restored() -> bool:
            assert called(view) == [1]
            return len((await hub.registry.instances("echo")).instances) == 1

        await eventually(restored)
        mark = (await hub.store.read(prefix(b"/registry/"))).revision
        await eventually(lambda: view.seen.mark >= mark)
        assert called(view) == [1]
