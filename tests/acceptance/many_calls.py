"""Runs many calls of `mooring` in one process, each in a fork of it: a fresh interpreter for each
would take most of the time.

On stdin a JSON list of calls, each a list of arguments; on stdout one JSON list a call: its exit
code and its output. A call that is still running after a while gets Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback

from mooring.cli import app, main

_SECONDS = 30


def _call(arguments: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run(arguments, output.fileno())
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")


def _run(arguments: list[str], output: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["mooring", *arguments]
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.alarm(_SECONDS)
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    app.load()  # here, and not in every fork
    for call in json.load(sys.stdin):
        print(json.dumps(_call(call)), flush=True)
