"""Bodies that are listened to: a request's, which may be sent again, and a response's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import httpx

Stream = httpx.AsyncByteStream | httpx.SyncByteStream
End = Callable[[BaseException | None], None]


class RequestBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body, and whether it can be sent from its beginning."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._begun = False

    @property
    def whole(self) -> bool:
        return not self._begun or isinstance(self._stream, httpx.ByteStream)

    def __iter__(self) -> Iterator[bytes]:
        self._begun = True
        assert isinstance(self._stream, httpx.SyncByteStream)
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._begun = True
        assert isinstance(self._stream, httpx.AsyncByteStream)
        return aiter(self._stream)


class _ResponseBody:
    """A response's body. Closing it ends the call."""

    def __init__(self, end: End, failure: BaseException | None) -> None:
        self._end, self._failure = end, failure

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            self._failure = error
            raise

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._end(self._failure)


class AsyncBody(_ResponseBody, httpx.AsyncByteStream):
    def __init__(self, stream: Stream, end: End, failure: BaseException | None) -> None:
        super().__init__(end, failure)
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._reading():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        with self._closing():
            await self._stream.aclose()


class Body(_ResponseBody, httpx.SyncByteStream):
    def __init__(self, stream: Stream, end: End, failure: BaseException | None) -> None:
        super().__init__(end, failure)
        assert isinstance(stream, httpx.SyncByteStream)
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with self._reading():
            yield from self._stream

    def close(self) -> None:
        with self._closing():
            self._stream.close()
