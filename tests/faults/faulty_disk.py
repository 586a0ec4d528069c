"""A layer under SQLite that records what is synced, and fails writes and syncs on demand.

It is a VFS of SQLite that wraps the default one. It needs no compiler, tracer or root. An error of
`xSync` is what SQLite's own layer returns if `fdatasync` fails, and `SQLITE_FULL` of `xWrite` is
what it returns for ENOSPC.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from math import inf
from pathlib import Path
from typing import Any

_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


class _VFS(Structure):
    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _OPEN),
        ("rest", c_void_p * 15),
    )


class _Methods(Structure):
    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", _WRITE),
        ("truncate", c_void_p),
        ("sync", _SYNC),
        ("rest", c_void_p * 13),
    )


class FaultyDisk:
    """`synced` contains the name of every file that was synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.cannot_sync: Callable[[str], bool] = lambda _: False
        """Whether the sync of a file of this name fails."""
        self.room: float = inf
        """Bytes that a file can have before the disk is full."""
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # objects that SQLite has pointers to
        self._methods: dict[int, _Methods] = {}

    # SQLite keeps the pointer to the name of a file, so that it must not be copied.
    def vfs(self, original: Any) -> _VFS:
        below = original.contents

        def open_file(_: int, name: int | None, file: int, flags: int, out: Any) -> int:
            code = int(below.open(ctypes.addressof(below), name, file, flags, out))
            methods = ctypes.cast(file, POINTER(c_void_p))
            if code == 0 and methods[0]:
                text = ctypes.string_at(name).decode() if name else ""
                self._names[file] = Path(text).name
                methods[0] = ctypes.addressof(self._wrapped(methods[0]))
            return code

        vfs = _VFS.from_buffer_copy(below)
        vfs.name = b"faulty"
        vfs.open = _OPEN(open_file)
        self._kept.append(vfs)
        return vfs

    def _wrapped(self, address: int) -> _Methods:
        if address not in self._methods:
            below = _Methods.from_address(address)
            methods = _Methods.from_buffer_copy(below)

            def sync(file: int, flags: int) -> int:
                if self.cannot_sync(self._names[file]):
                    return sqlite3.SQLITE_IOERR_FSYNC
                self.synced.append(self._names[file])
                return int(below.sync(file, flags))

            def write(file: int, data: int, length: int, offset: int) -> int:
                if offset + length > self.room:
                    return sqlite3.SQLITE_FULL
                return int(below.write(file, data, length, offset))

            methods.sync, methods.write = _SYNC(sync), _WRITE(write)
            self._methods[address] = methods
        return self._methods[address]


_all: list[FaultyDisk] = []  # connections may outlive the test: their callbacks stay


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    """Every SQLite file that is opened in the body is on this disk."""
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = POINTER(_VFS)
    library.sqlite3_vfs_find.argtypes = (c_char_p,)
    library.sqlite3_vfs_register.argtypes = (POINTER(_VFS), c_int)
    library.sqlite3_vfs_unregister.argtypes = (POINTER(_VFS),)
    disk = FaultyDisk()
    _all.append(disk)
    original = library.sqlite3_vfs_find(None)
    vfs = disk.vfs(original)
    library.sqlite3_vfs_register(vfs, 1)
    try:
        yield disk
    finally:
        library.sqlite3_vfs_unregister(vfs)
        library.sqlite3_vfs_register(original, 1)
