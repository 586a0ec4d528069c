"""What a client must be told next, whatever it asks, takes, refuses or leaves unanswered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mooring.xds.resources import Resource
from mooring.xds.subscriptions import Incremental, Lookup, PendingResponse, StateOfTheWorld


class World:
    """What there is."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions

    def find(self, name: str) -> Lookup:
        version = self.versions.get(name, "absent")
        if version == "absent" or version == "unknown":
            return version  # type: ignore[return-value]
        return Resource(version, None)


def told(answer: PendingResponse | None) -> dict[str, str] | None:
    if answer is None:
        return None
    return {name: each.version for name, each in answer.resources.items()}


class TestStateOfTheWorld:
    def test_an_answer_to_listeners_is_everything_that_was_asked_for(self):
        world, listeners = World(a="1", b="1", c="1"), StateOfTheWorld(complete=True)
        listeners.handle(["a"], "", "")
        assert told(listeners.next(world.find, ())) == {"a": "1"}
        listeners.mark_sent("1")
        listeners.handle(["a", "b"], "1", "")
        assert told(listeners.next(world.find, ())) == {"a": "1", "b": "1"}

    def test_an_answer_to_endpoints_is_what_is_new(self):
        world, endpoints = World(a="1", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a", "b"], "", "")
        assert told(endpoints.next(world.find, ())) == {"a": "1", "b": "1"}
        endpoints.mark_sent("1")
        endpoints.handle(["a", "b"], "1", "")
        assert endpoints.next(world.find, ()) is None
        world.versions["b"] = "2"
        endpoints.mark_changed(["a", "b"])
        assert told(endpoints.next(world.find, ())) == {"b": "2"}

    def test_nothing_is_sent_until_the_client_answers_and_then_the_latest(self):
        world, endpoints = World(a="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a"], "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        for version in "234":
            world.versions["a"] = version
            endpoints.mark_changed(["a"])
            assert endpoints.next(world.find, ()) is None
        assert endpoints.handle(["a"], "1", "") == "ack"
        assert told(endpoints.next(world.find, ())) == {"a": "4"}

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_refused_version_is_not_sent_again_and_the_next_one_is(self, complete: bool):
        world, some = World(a="1"), StateOfTheWorld(complete=complete)
        some.handle(["a"], "", "")
        some.next(world.find, ())
        some.mark_sent("1")
        assert some.handle(["a"], "1", "no good") == "nack"
        assert some.next(world.find, ()) is None
        world.versions["a"] = "2"
        some.mark_changed(["a"])
        assert told(some.next(world.find, ())) == {"a": "2"}

    def test_what_was_refused_for_anothers_sake_is_sent_again_with_it(self):
        world, endpoints = World(a="1", b="1", c="1"), StateOfTheWorld(complete=False)
        endpoints.handle("abc", "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle("abc", "1", "b is no good")
        world.versions["b"] = "2"
        endpoints.mark_changed(["b"])
        assert told(endpoints.next(world.find, ())) == {"a": "1", "b": "2", "c": "1"}
        endpoints.mark_sent("2")
        endpoints.handle("abc", "2", "")
        world.versions["b"] = "3"
        endpoints.mark_changed(["b"])
        assert told(endpoints.next(world.find, ())) == {"b": "3"}

    def test_what_changed_before_it_was_refused_is_sent_again_with_the_others(self):
        world, endpoints = World(a="1", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle("ab", "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        world.versions["b"] = "2"
        endpoints.mark_changed(["b"])
        endpoints.handle("ab", "1", "b is no good")
        assert told(endpoints.next(world.find, ())) == {"a": "1", "b": "2"}

    def test_an_answer_to_an_older_response_is_ignored_but_for_its_names(self):
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
        assert told(endpoints.next(world.find, ())) == {"b": "1"}

    def test_what_is_left_and_asked_for_again_across_a_response_is_sent_again(self):
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
        assert told(endpoints.next(world.find, ())) == {"a": "1"}

    def test_what_was_left_and_is_asked_for_again_is_sent_again(self):
        world, endpoints = World(a="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a"], "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle([], "1", "")
        assert endpoints.next(world.find, ()) is None
        endpoints.handle(["a"], "1", "")
        assert told(endpoints.next(world.find, ())) == {"a": "1"}

    def test_no_names_are_all_of_them_for_clusters_and_none_for_endpoints(self):
        world = World(a="1", b="1")
        clusters, endpoints = StateOfTheWorld(complete=True), StateOfTheWorld(complete=False)
        clusters.handle([], "", "")
        endpoints.handle([], "", "")
        assert told(clusters.next(world.find, ["a", "b"])) == {"a": "1", "b": "1"}
        assert endpoints.next(world.find, ["a", "b"]) is None

    def test_all_of_them_is_answered_though_there_are_none(self):
        clusters = StateOfTheWorld(complete=True)
        clusters.handle([], "", "")
        assert clusters.next(World().find, None) is None, "nobody knows yet"
        assert told(clusters.next(World().find, [])) == {}

    def test_a_cluster_that_went_is_left_out_of_the_next_answer(self):
        world, clusters = World(a="1", b="1"), StateOfTheWorld(complete=True)
        clusters.handle([], "", "")
        clusters.next(world.find, ["a", "b"])
        clusters.mark_sent("1")
        clusters.handle([], "1", "")
        clusters.relist()
        assert clusters.next(world.find, ["a", "b"]) is None, "nothing came or went"
        clusters.relist()
        assert told(clusters.next(world.find, ["a"])) == {"a": "1"}

    def test_what_is_not_known_yet_is_told_later(self):
        world, endpoints = World(a="unknown", b="1"), StateOfTheWorld(complete=False)
        endpoints.handle(["a", "b"], "", "")
        assert told(endpoints.next(world.find, ())) == {"b": "1"}
        endpoints.mark_sent("1")
        endpoints.handle(["a", "b"], "1", "")
        world.versions["a"] = "1"
        endpoints.mark_changed(["a"])
        assert told(endpoints.next(world.find, ())) == {"a": "1"}

    def test_a_list_with_something_unknown_in_it_waits(self):
        world, clusters = World(a="unknown", b="1"), StateOfTheWorld(complete=True)
        clusters.handle(["a", "b"], "", "")
        assert clusters.next(world.find, ()) is None, "it would say that there is no such cluster"
        world.versions["a"] = "1"
        clusters.mark_changed(["a"])
        assert told(clusters.next(world.find, ())) == {"a": "1", "b": "1"}


class TestIncremental:
    def test_only_differences_are_sent(self):
        world, endpoints = World(a="1", b="1"), Incremental(complete=False)
        endpoints.handle(["a", "b"], [], {}, "", "")
        assert told(endpoints.next(world.find, ())) == {"a": "1", "b": "1"}
        endpoints.mark_sent("1")
        endpoints.handle([], [], {}, "1", "")
        world.versions["a"] = "2"
        endpoints.mark_changed(["a", "b"])
        assert told(endpoints.next(world.find, ())) == {"a": "2"}

    def test_a_name_that_does_not_exist_is_said_to(self):
        endpoints = Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        assert endpoints.next(World().find, ()) == PendingResponse({}, ("a",))

    def test_what_a_client_has_from_before_is_not_sent_again(self):
        world, clusters = World(a="1", b="2", c="1"), Incremental(complete=True)
        clusters.handle([], [], {"a": "1", "b": "1", "gone": "1"}, "", "")
        answer = clusters.next(world.find, ["a", "b", "c"])
        assert told(answer) == {"b": "2", "c": "1"}
        assert answer is not None
        assert answer.removed == ("gone",)

    def test_all_of_them_is_answered_though_there_are_none(self):
        clusters = Incremental(complete=True)
        clusters.handle([], [], {}, "", "")
        assert clusters.next(World().find, None) is None, "nobody knows yet"
        assert clusters.next(World().find, []) == PendingResponse({})
        assert clusters.next(World().find, []) is None

    def test_a_refused_version_is_not_sent_again_and_the_next_one_is(self):
        world, endpoints = World(a="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        assert endpoints.handle([], [], {}, "1", "no good") == "nack"
        assert endpoints.next(world.find, ()) is None
        world.versions["a"] = "2"
        endpoints.mark_changed(["a"])
        assert told(endpoints.next(world.find, ())) == {"a": "2"}

    def test_names_count_though_the_response_before_is_not_answered(self):
        world, endpoints = World(a="1", b="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["b"], [], {}, "", "")
        assert endpoints.next(world.find, ()) is None
        endpoints.handle([], [], {}, "1", "")
        assert told(endpoints.next(world.find, ())) == {"b": "1"}

    def test_the_answer_to_an_older_response_counts_for_nothing(self):
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
        assert told(endpoints.next(world.find, ())) == {"b": "2"}

    def test_asking_again_is_answered_again(self):
        world, endpoints = World(a="1"), Incremental(complete=False)
        endpoints.handle(["a"], [], {}, "", "")
        endpoints.next(world.find, ())
        endpoints.mark_sent("1")
        endpoints.handle(["a"], [], {}, "1", "")
        assert told(endpoints.next(world.find, ())) == {"a": "1"}


NAMES = ["a", "b", "c", "d"]


class Following(RuleBasedStateMachine):
    """A client that keeps to the protocol, and whatever may happen: once it has answered all that
    it was sent, it was told what there is."""

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
        versions = {n: each.version for n, each in answer.resources.items() if n in wants}
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
        for _ in range(3):  # what is under way, what was asked for meanwhile, and nothing more
            if self.under_way is not None:
                self.answer("")
            self.send()
        assert self.under_way is None
        wants = NAMES if self.wildcard else self.wants
        there = {name: v for name, v in self.world.versions.items() if name in wants}
        assert self.has == there

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
    """Incremental, and all of it for clusters and listeners alone."""

    def _following(self, world: World) -> Incremental:
        clusters = Incremental(complete=True)
        clusters.handle(["*"], [], {}, "", "")
        assert told(clusters.next(world.find, ["a", "b"])) == {"a": "1", "b": "1"}
        clusters.mark_sent("1")
        clusters.handle([], [], {}, "1", "")
        return clusters

    def test_what_is_left_and_asked_for_again_is_sent_again(self):
        world = World(a="1", b="1")
        clusters = self._following(world)
        clusters.handle([], ["*"], {}, "", "")
        assert clusters.next(world.find, ["a", "b"]) is None
        clusters.handle(["*"], [], {}, "", "")
        assert told(clusters.next(world.find, ["a", "b"])) == {"a": "1", "b": "1"}

    def test_a_name_that_is_left_and_still_among_all_is_told(self):
        world = World(a="1", b="1")
        clusters = self._following(world)
        clusters.handle([], ["a", "none"], {}, "", "")
        answer = clusters.next(world.find, ["a", "b"])
        assert told(answer) == {"a": "1"}
        assert answer is not None
        assert answer.removed == ("none",)
