"""A call that failed because there was no instance to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

import grpc


class FailedCall(grpc.RpcError, grpc.Call, grpc.Future):  # type: ignore[misc]
    """Error, call, future and stream in one, as gRPC's own are."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def debug_error_string(self) -> str:
        return ""

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> NoReturn:
        raise self

    def exception(self, timeout: float | None = None) -> Self:
        return self

    def traceback(self, timeout: float | None = None) -> Any:
        return self.__traceback__

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        fn(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NoReturn:
        raise self
