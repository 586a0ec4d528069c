"""What a client must be sent next, after any subscription, ACK, NACK or silence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mooring.xds.resources import Resource
from mooring.xds.subscriptions import Incremental, Lookup, PendingResponse, StateOfTheWorld


class World:
    """The existing resources and their versions."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions

    def find(self, name: str) -> Lookup:
        version = self.versions.get(name, "absent")
        if version == "absent" or version == "unknown":
            return version  # type: ignore[return-value]
        return Resource(version, None)


def versions_in(answer: PendingResponse | None) -> dict[str, str] | None:
    if answer is None:
        return None
    return {name: resource.version for name, resource in answer.resources.items()}


class TestStateOfTheWorld:
    def test_a_response_of_listeners_contains_all_subscribed_ones(self):
        world, listeners = World(a="1", b="1", c="1"), StateOfTheWorld(complete=True)
        listeners.handle(["a"], "", "")
        assert versions_in(listeners.next(world.find, ())) == {"a": "1"}
        listeners.mark_sent("1")
        listeners.handle(["a", "b"], "1", "")
        assert versions_in(listeners.next(world.find, ())) == {"a": "1", "b": "1"}

    def test_a_response_of_endpoints_contains_only_changes(self):
        world, endpoints = World(a="1", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a", "b"], "", "")
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1", "b": "1"}
        endpoints.mark_sent("1")
        endpoints.handle(["a", "b"], "1", "")
        assert endpoints.next(world.find, ()) is None
        world.versions["b"] = "2"
        endpoints.mark_changed(["a", "b"])
        assert versions_in(endpoints.next(world.find, ())) == {"b": "2"}

    def test_nothing_is_sent_until_the_client_acknowledges_and_then_the_latest(self):
        world, endpoints = World(a="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a"], "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        for version in "234":
            world.versions["a"] = version
            endpoints.mark_changed(["a"])
            assert endpoints.next(world.find, ()) is None
        assert endpoints.handle(["a"], "1", "") == "ack"
        assert versions_in(endpoints.next(world.find, ())) == {"a": "4"}

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_rejected_version_is_not_sent_again_but_the_next_one_is(self, complete: bool):
        world, some = World(a="1"), StateOfTheWorld(complete=complete)
        some.handle(["a"], "", "")
        some.next(world.find, ())
        some.mark_sent("1")
        assert some.handle(["a"], "1", "no good") == "nack"
        assert some.next(world.find, ()) is None
        world.versions["a"] = "2"
        some.mark_changed(["a"])
        assert versions_in(some.next(world.find, ())) == {"a": "2"}

    def test_resources_rejected_together_are_sent_again_together(self):
        world, endpoints = World(a="1", b="1", c="1"), StateOfTheWorld(complete=False)
        endpoints.handle("abc", "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle("abc", "1", "b is no good")
        world.versions["b"] = "2"
        endpoints.mark_changed(["b"])
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1", "b": "2", "c": "1"}
        endpoints.mark_sent("2")
        endpoints.handle("abc", "2", "")
        world.versions["b"] = "3"
        endpoints.mark_changed(["b"])
        assert versions_in(endpoints.next(world.find, ())) == {"b": "3"}

    def test_a_change_before_a_rejection_is_sent_with_the_other_resources(self):
        world, endpoints = World(a="1", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle("ab", "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        world.versions["b"] = "2"
        endpoints.mark_changed(["b"])
        endpoints.handle("ab", "1", "b is no good")
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1", "b": "2"}

    def test_only_the_names_of_a_late_acknowledgement_count(self):
        world, endpoints = World(a="1", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a"], "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["a"], "1", "")
        world.versions["a"] = "2"
        endpoints.mark_changed(["a"])
        endpoints.next(world.find, ())
        endpoints.mark_sent("2")
        assert endpoints.handle(["b"], "1", "late") == "stale"
        assert endpoints.unacknowledged == "2"
        assert endpoints.next(world.find, ()) is None
        assert endpoints.handle(["b"], "2", "") == "ack"
        assert versions_in(endpoints.next(world.find, ())) == {"b": "1"}

    def test_a_resubscription_across_a_response_is_sent_again(self):
        world, endpoints = World(a="1", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a"], "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["a", "b"], "1", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("2")
        endpoints.handle(["b"], "1", "")
        endpoints.handle(["a", "b"], "1", "")
        endpoints.handle(["a", "b"], "2", "")
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1"}

    def test_a_resubscribed_resource_is_sent_again(self):
        world, endpoints = World(a="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a"], "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle([], "1", "")
        assert endpoints.next(world.find, ()) is None
        endpoints.handle(["a"], "1", "")
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1"}

    def test_an_empty_subscription_means_all_clusters_but_no_endpoints(self):
        world = World(a="1", b="1")
        clusters, endpoints = StateOfTheWorld(complete=True), StateOfTheWorld(complete=False)
        clusters.handle([], "", "")
        endpoints.handle([], "", "")
        assert versions_in(clusters.next(world.find, ["a", "b"])) == {"a": "1", "b": "1"}
        assert endpoints.next(world.find, ["a", "b"]) is None

    def test_a_wildcard_without_resources_gets_an_empty_response(self):
        clusters = StateOfTheWorld(complete=True)
        clusters.handle([], "", "")
        assert clusters.next(World().find, None) is None, "not known yet"
        assert versions_in(clusters.next(World().find, [])) == {}

    def test_a_removed_cluster_is_missing_in_the_next_response(self):
        world, clusters = World(a="1", b="1"), StateOfTheWorld(complete=True)
        clusters.handle([], "", "")
        clusters.next(world.find, ["a", "b"])
        clusters.mark_sent("1")
        clusters.handle([], "1", "")
        clusters.relist()
        assert clusters.next(world.find, ["a", "b"]) is None, "nothing came or went"
        clusters.relist()
        assert versions_in(clusters.next(world.find, ["a"])) == {"a": "1"}

    def test_a_resource_that_is_not_known_yet_is_sent_later(self):
        world, endpoints = World(a="unknown", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a", "b"], "", "")
        assert versions_in(endpoints.next(world.find, ())) == {"b": "1"}
        endpoints.mark_sent("1")
        endpoints.handle(["a", "b"], "1", "")
        world.versions["a"] = "1"
        endpoints.mark_changed(["a"])
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1"}

    def test_a_complete_response_waits_for_unknown_resources(self):
        world, clusters = World(a="unknown", b="1"), StateOfTheWorld(complete=True)
        clusters.handle(["a", "b"], "", "")
        assert clusters.next(world.find, ()) is None, (
            "it would mean that the cluster does not exist"
        )
        world.versions["a"] = "1"
        clusters.mark_changed(["a"])
        assert versions_in(clusters.next(world.find, ())) == {"a": "1", "b": "1"}


class TestIncremental:
    def test_only_differences_are_sent(self):
        world, endpoints = World(a="1", b="1"), Incremental(complete=False)
        endpoints.handle(["a", "b"], [], {}, "", "")
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1", "b": "1"}
        endpoints.mark_sent("1")
        endpoints.handle([], [], {}, "1", "")
        world.versions["a"] = "2"
        endpoints.mark_changed(["a", "b"])
        assert versions_in(endpoints.next(world.find, ())) == {"a": "2"}

    def test_a_missing_resource_is_reported_as_removed(self):
        endpoints = Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        assert endpoints.next(World().find, ()) == PendingResponse({}, ("a",))

    def test_resources_that_a_client_already_has_are_not_sent_again(self):
        world, clusters = World(a="1", b="2", c="1"), Incremental(complete=True)
        clusters.handle([], [], {"a": "1", "b": "1", "gone": "1"}, "", "")
        answer = clusters.next(world.find, ["a", "b", "c"])
        assert versions_in(answer) == {"b": "2", "c": "1"}
        assert answer is not None
        assert answer.removed == ("gone",)

    def test_a_wildcard_without_resources_gets_an_empty_response(self):
        clusters = Incremental(complete=True)
        clusters.handle([], [], {}, "", "")
        assert clusters.next(World().find, None) is None, "not known yet"
        assert clusters.next(World().find, []) == PendingResponse({})
        assert clusters.next(World().find, []) is None

    def test_a_rejected_version_is_not_sent_again_but_the_next_one_is(self):
        world, endpoints = World(a="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        assert endpoints.handle([], [], {}, "1", "no good") == "nack"
        assert endpoints.next(world.find, ()) is None
        world.versions["a"] = "2"
        endpoints.mark_changed(["a"])
        assert versions_in(endpoints.next(world.find, ())) == {"a": "2"}

    def test_names_count_before_the_previous_response_is_acknowledged(self):
        world, endpoints = World(a="1", b="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["b"], [], {}, "", "")
        assert endpoints.next(world.find, ()) is None
        endpoints.handle([], [], {}, "1", "")
        assert versions_in(endpoints.next(world.find, ())) == {"b": "1"}

    def test_a_late_acknowledgement_is_ignored(self):
        world, endpoints = World(a="1", b="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["b"], [], {}, "1", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("2")
        assert endpoints.handle([], [], {}, "1", "no good") == "subscribe"
        assert endpoints.unacknowledged == "2"
        world.versions["b"] = "2"
        endpoints.mark_changed(["b"])
        assert endpoints.next(world.find, ()) is None, "the newer response is not answered yet"
        assert endpoints.handle([], [], {}, "2", "") == "ack"
        assert versions_in(endpoints.next(world.find, ())) == {"b": "2"}

    def test_a_resubscription_is_answered_again(self):
        world, endpoints = World(a="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["a"], [], {}, "1", "")
        assert versions_in(endpoints.next(world.find, ())) == {"a": "1"}


NAMES = ["a", "b", "c", "d"]


class Following(RuleBasedStateMachine):
    """A client that follows the protocol, through random changes: once it has acknowledged every
    response, it knows the current resources."""

    whole = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.has: dict[str, str] = {}
        self.wants: set[str] = set()
        self.wildcard = False
        self.sent = 0
        self.received = ""
        self.under_way: PendingResponse | None = None

    @initialize(names=st.sets(st.sampled_from(NAMES)))
    def begin(self, names: set[str]) -> None:
        self.wants, self.wildcard = names, self.whole and not names
        self.ask(names, set())

    @rule(name=st.sampled_from(NAMES), version=st.integers(0, 9))
    def change(self, name: str, version: int) -> None:
        new = name not in self.world.versions
        self.world.versions[name] = str(version)
        self.subscription.mark_changed([name])
        if new:
            self.subscription.relist()

    @precondition(lambda self: self.whole)
    @rule(name=st.sampled_from(NAMES))
    def go(self, name: str) -> None:
        if self.world.versions.pop(name, None) is not None:
            self.subscription.mark_changed([name])
            self.subscription.relist()

    @precondition(lambda self: self.under_way is None)
    @rule()
    def send(self) -> None:
        answer = self.subscription.next(self.world.find, list(self.world.versions))
        if answer is not None:
            self.sent += 1
            self.subscription.mark_sent(str(self.sent))
            self.under_way = answer

    @precondition(lambda self: self.under_way is not None)
    @rule(error=st.sampled_from(["", "no good"]))
    def answer(self, error: str) -> None:
        answer, self.under_way = self.under_way, None
        assert answer is not None
        self.received = str(self.sent)
        wants = NAMES if self.wildcard else self.wants
        versions = {n: resource.version for n, resource in answer.resources.items() if n in wants}
        self.take(versions, answer.removed)
        self.reply(error)

    @precondition(lambda self: not self.wildcard)
    @rule(name=st.sampled_from(NAMES))
    def want(self, name: str) -> None:
        if name in self.wants:
            self.wants.discard(name)
            self.has.pop(name, None)
            self.ask(set(), {name})
        else:
            self.wants.add(name)
            self.ask({name}, set())

    def teardown(self) -> None:
        for _ in range(3):  # what is in flight, what was subscribed meanwhile, and nothing more
            if self.under_way is not None:
                self.answer("")
            self.send()
        assert self.under_way is None
        wants = NAMES if self.wildcard else self.wants
        existing = {name: v for name, v in self.world.versions.items() if name in wants}
        assert self.has == existing

    subscription: Any

    def ask(self, more: set[str], less: set[str]) -> None:
        raise NotImplementedError

    def reply(self, error: str) -> None:
        raise NotImplementedError

    def take(self, versions: dict[str, str], removed: tuple[str, ...]) -> None:
        raise NotImplementedError


class FollowingTheWorld(Following):
    def __init__(self) -> None:
        super().__init__()
        self.subscription = StateOfTheWorld(complete=self.whole)

    def ask(self, more: set[str], less: set[str]) -> None:
        self.subscription.handle(sorted(self.wants), self.received, "")

    def reply(self, error: str) -> None:
        self.subscription.handle(sorted(self.wants), self.received, error)

    def take(self, versions: dict[str, str], removed: tuple[str, ...]) -> None:
        if self.whole:
            self.has.clear()
        self.has.update(versions)


class FollowingDifferences(Following):
    def __init__(self) -> None:
        super().__init__()
        self.subscription = Incremental(complete=self.whole)

    def ask(self, more: set[str], less: set[str]) -> None:
        self.subscription.handle(sorted(more), sorted(less), {}, "", "")

    def reply(self, error: str) -> None:
        self.subscription.handle([], [], {}, self.received, error)

    def take(self, versions: dict[str, str], removed: tuple[str, ...]) -> None:
        self.has.update(versions)
        for name in removed:
            self.has.pop(name, None)


class WholeWorld(FollowingTheWorld):
    whole = True


class WholeDifferences(FollowingDifferences):
    whole = True


for machine in (FollowingTheWorld, WholeWorld, FollowingDifferences, WholeDifferences):
    machine.TestCase.settings = settings(max_examples=200, stateful_step_count=25)

TestFollowingTheWorld = FollowingTheWorld.TestCase
TestFollowingAWholeWorld = WholeWorld.TestCase
TestFollowingDifferences = FollowingDifferences.TestCase
TestFollowingDifferencesOfAll = WholeDifferences.TestCase


class TestLeavingTheWildcard:
    """Incremental, with a wildcard only for clusters and listeners."""

    def _following(self, world: World) -> Incremental:
        clusters = Incremental(complete=True)
        clusters.handle(["*"], [], {}, "", "")
        assert versions_in(clusters.next(world.find, ["a", "b"])) == {"a": "1", "b": "1"}
        clusters.mark_sent("1")
        clusters.handle([], [], {}, "1", "")
        return clusters

    def test_a_wildcard_that_is_subscribed_again_is_sent_again(self):
        world = World(a="1", b="1")
        clusters = self._following(world)
        clusters.handle([], ["*"], {}, "", "")
        assert clusters.next(world.find, ["a", "b"]) is None
        clusters.handle(["*"], [], {}, "", "")
        assert versions_in(clusters.next(world.find, ["a", "b"])) == {"a": "1", "b": "1"}

    def test_an_unsubscribed_name_that_the_wildcard_covers_is_sent(self):
        world = World(a="1", b="1")
        clusters = self._following(world)
        clusters.handle([], ["a", "none"], {}, "", "")
        answer = clusters.next(world.find, ["a", "b"])
        assert versions_in(answer) == {"a": "1"}
        assert answer is not None
        assert answer.removed == ("none",)
