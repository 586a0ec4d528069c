"""Is the process alive, and can it serve?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mooring.errors import InvalidRequest, StoreError
from mooring.hub import Hub
from mooring.store import key

_PATIENCE = 2.0
_NOWHERE = b"/mooring/ready"


class Question(NamedTuple):
    """Something cheap to ask of what is served."""

    where: str
    ask: Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Readiness:
    """How far the server is: it comes up before its store, and goes down after it."""

    questions: tuple[Question, ...] | None = None
    """What must be answered to be ready, once everything listens."""
    stopping: bool = False

    async def problems(self) -> list[str]:
        """Why it is not ready, in words; nothing while store and registry can be read and it is
        not about to stop."""
        if self.stopping:
            return ["stopping"]
        if self.questions is None:
            return ["starting"]
        told = await asyncio.gather(*map(_problem, self.questions))
        return [problem for problem in told if problem]


def questions(hub: Hub, *, apart: bool, store: bool) -> Iterator[Question]:
    """What to ask of a hub: of its store, where there is one, and of a registry that is `apart`."""
    if store:
        yield Question(hub.store.url, lambda: hub.store.read(key(_NOWHERE), keys_only=True))
    if apart:
        yield Question(hub.registry.url, lambda: hub.registry.info(group="mooring"))


async def _problem(question: Question) -> str:
    """Why there is no answer; empty where there is one."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await question.ask()
    except TimeoutError:
        return f"{question.where} does not answer"
    except StoreError as error:
        return str(error)
    except InvalidRequest:
        pass  # it answered, and with something that somebody else wrote
    return ""
