"""An endpoint as data: from a table of these come routing, access, validation and OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mooring.server.access.principals import Need
from mooring.server.http.answers import Answer

if TYPE_CHECKING:
    from mooring.server.http.calls import Call

Handler = Callable[["Call"], Awaitable[Answer]]

SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    """Segments with parameters in braces, `/services/{service}/health`; each is one segment."""
    needs: Need
    """Who may; there is no endpoint that does not say."""
    handler: Handler
    summary: str
    """One line for OpenAPI."""
    body: Any = None
    """The type of a JSON body; None: there is none."""
    query: Any = None
    """A `msgspec.Struct` of the query's parameters; None: there are none."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """What may be answered beside errors: the type by status; None: no JSON."""
    fails: tuple[int, ...] = ()
    """Errors that only this one can answer with, beside those of its access and its input."""
    media: str = "application/json"
    """Of what it answers."""
    acts: bool | None = None
    """Whether it is written into the audit; by default what may change something."""
    parameters: tuple[str, ...] = field(init=False)
    """The names in the path."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(re.findall(r"{(\w+)}", self.path)))

    @property
    def audited(self) -> bool:
        return self.method not in SAFE if self.acts is None else self.acts
