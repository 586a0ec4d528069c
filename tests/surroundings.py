"""Isolates the tests from the shell, the user's settings and the terminal.

`settle()` is called once in each process of a run, before the first test.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

_PREFIXES = (
    *("MOORING_", "ETCD_", "ETCDCTL_", "FLASK_", "GRPC_", "GUNICORN_", "LC_", "OTEL_"),
    *("PYTEST_ADDOPTS", "UVICORN_"),
)
_KEPT = "ETCD_UNSUPPORTED_ARCH"  # without it etcd does not start on some machines
_NAMES = {
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "grpc_proxy", "ftp_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY"),
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "PY_COLORS", "TERM"),
    *("CI", "GITHUB_ACTIONS", "LANGUAGE", "REDISCLI_AUTH", "PYTHONUNBUFFERED", "PYTHONIOENCODING"),
    *("ENCRYPTION_KEY", "PYTHONWARNINGS", "CURL_HOME"),
    *("FORWARDED_ALLOW_IPS", "NODE_OPTIONS", "WEB_CONCURRENCY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
}


def settle() -> None:
    for name in list(os.environ):
        if (name.startswith(_PREFIXES) and name != _KEPT) or name in _NAMES:
            del os.environ[name]
    # Without this, each process would compile everything again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["LANG"] = "C.UTF-8"
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.umask(0o022)
    # A background process of a script ignores SIGINT and SIGQUIT, and below nohup SIGHUP. Child
    # processes inherit that, except for signals with a handler, which these get. The test run
    # itself still survives them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def _ignore(number: int, frame: object) -> None:
    pass


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    except OSError:
        return False
