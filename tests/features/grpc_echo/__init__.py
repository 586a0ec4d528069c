"""A service with generated stubs, which the installed generator makes from `echo.proto` at first
use, and servers of it: in this process, or in a separate one that can be killed (`python -m`)."""

from __future__ import annotations

import atexit
import functools
import importlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PROTO = Path(__file__).with_name("echo.proto")


@functools.cache
def stubs() -> tuple[Any, Any]:
    """The generated modules: messages, and stubs with servicers."""
    folder = tempfile.mkdtemp(prefix="mooring-stubs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = [f"--{kind}={folder}" for kind in ("python_out", "grpc_python_out")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{_PROTO.parent}", *made]
    subprocess.run([*command, str(_PROTO)], check=True)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("echo_pb2"), importlib.import_module("echo_pb2_grpc")
    finally:
        sys.path.remove(folder)
