"""Which errors of a call are the instance's fault."""

from __future__ import annotations

import errno
import socket
import ssl

_UNREACHED = (ConnectionError, TimeoutError, EOFError, socket.gaierror, socket.herror, ssl.SSLError)
_AT_HOME = (
    ValueError,  # what is asked for makes no sense: `io.UnsupportedOperation`
    BlockingIOError,
    ChildProcessError,
    FileExistsError,
    FileNotFoundError,
    InterruptedError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ProcessLookupError,
)
_ON_THE_WAY = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EPIPE,
    errno.ESHUTDOWN,
    errno.ETIMEDOUT,
}


def blames(error: BaseException) -> bool:
    """Whether an error that ends a call is the instance's fault: it could not be reached, or did
    not answer in time. A file that is missing here, or a full disk, is not."""
    if isinstance(error, _UNREACHED):
        return True
    if not isinstance(error, OSError) or isinstance(error, _AT_HOME):
        return False
    # Without a number it comes from a library: asyncio's where no address of a host answers,
    # `requests`' own. A negative one is the resolver's.
    number = error.errno
    return number is None or number < 0 or number in _ON_THE_WAY
