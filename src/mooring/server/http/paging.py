"""Lists, cut into pages: `?limit=` so many at the most, `?after=` the name that the last page ended
with."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T")

LIMIT = 1000
"""What a page has at the most, and where nothing is said."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters of a list; add filters by making a subclass."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT)] = LIMIT
    after: Annotated[str, msgspec.Meta(max_length=1000)] = ""


def cut(
    items: Iterable[T], page: Page, name: Callable[[T], str], *, path: str
) -> tuple[Sequence[T], dict[str, str]]:
    """One page of items that are in the order of their names, and the headers that tell of the
    rest. `path` is the list's own."""
    everything = list(items)
    rest = [item for item in everything if name(item) > page.after] if page.after else everything
    some = rest[: page.limit]
    headers = {"X-Total-Count": str(len(everything))}
    if len(rest) > len(some):
        query = {**_told(page), "limit": str(page.limit), "after": name(some[-1])}
        headers["Link"] = f'<{path}?{urllib.parse.urlencode(query)}>; rel="next"'
    return some, headers


def _told(page: Page) -> Mapping[str, str]:
    """The filters of a query, as they were asked for."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field in msgspec.structs.fields(page)
        if (value := getattr(page, field.name)) != field.default
    }
