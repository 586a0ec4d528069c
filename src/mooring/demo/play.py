"""What happens when, as data: a play of a minute that begins again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verb = Literal["fail", "recover", "drain", "leave", "return"]

LASTS = 60.0
"""Seconds of one round."""


@dataclass(frozen=True, slots=True)
class Role:
    """An instance of the play."""

    service: str
    number: int
    zone: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.service} {self.number}"


@dataclass(frozen=True, slots=True)
class Act:
    at: float
    """Seconds from the beginning of a round."""
    verb: Verb
    service: str
    number: int
    """Which of its instances, from 1 on; 0: all of them."""
    text: str
    """What the audience is told."""


_CAST = (
    ("shop/orders", 3, "2.4.1"),
    ("shop/cart", 2, "1.9.0"),
    ("shop/payments", 3, "3.0.2"),
    ("media/thumbnails", 2, "0.8.5"),
    ("gateway", 2, "5.1.0"),
)

ROLES: tuple[Role, ...] = tuple(
    Role(service, number, "east" if number % 2 else "west", version)
    for service, count, version in _CAST
    for number in range(1, count + 1)
)

ACTS: tuple[Act, ...] = (
    Act(4, "fail", "shop/payments", 2, "its database is slow: it says that it is unhealthy"),
    Act(12, "fail", "shop/orders", 3, "it is out of memory: it says that it is unhealthy"),
    Act(18, "recover", "shop/payments", 2, "its database answers again: it is healthy"),
    Act(22, "drain", "shop/cart", 1, "a new version comes: it drains, and goes"),
    Act(30, "return", "shop/cart", 1, "it is back, with a new version"),
    Act(34, "recover", "shop/orders", 3, "it was restarted: it is healthy"),
    Act(38, "leave", "media/thumbnails", 0, "all of them go: nobody can be called"),
    Act(50, "return", "media/thumbnails", 0, "they are back"),
)
"""In their order. After them everything is as it was at the beginning."""


def next_version(version: str) -> str:
    """The version that a new build has: `1.9.0` → `1.9.1`."""
    rest, _, last = version.rpartition(".")
    return f"{rest}.{int(last) + 1}"
