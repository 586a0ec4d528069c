"""`mooring serve` in a separate process, on free ports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Self

from mooring.testing.servers import free_port
from tests.acceptance.forking import Forked


class Served:
    """The server, started and ready; leaving it kills it. With `interpreter` it starts like for a
    user, otherwise much faster."""

    def __init__(
        self, store: str, *arguments: str, folder: Path | None = None, interpreter: bool = False
    ) -> None:
        self.etcd, self.http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        store_flag = [f"--store={store}"] if store else []
        more = arguments or [f"--etcd={self.etcd}"]
        self._arguments = ["serve", *store_flag, f"--http={self.http}", *more]
        self.command = [sys.executable, "-m", "mooring.cli", *self._arguments]
        self._interpreter = interpreter
        self.environment = {**os.environ}
        self._spare = None if folder else tempfile.TemporaryDirectory(prefix="mooring-")
        self.folder = folder or Path(self._spare.name if self._spare else "")
        self.environment["XDG_DATA_HOME"] = str(self.folder)
        self.lines: list[str] = []
        self.ready_after = 0.0

    @property
    def url(self) -> str:
        return f"etcd://{self.etcd}"

    def __enter__(self) -> Self:
        started = time.monotonic()
        self._errors = tempfile.TemporaryFile("a+", encoding="utf-8")
        reading, writing = os.pipe()
        self._output = open(reading, encoding="utf-8")
        with open(writing, "wb") as output:
            self.process = self._started(output)
        for line in self._output:
            self.lines.append(line.rstrip())
            if line.startswith("ready"):
                self.ready_after = time.monotonic() - started
                return self
        raise AssertionError(f"it did not start: {self.lines} {self.logged()}")

    def _started(self, output: IO[bytes]) -> Forked | subprocess.Popen[bytes]:
        if self._interpreter:
            return subprocess.Popen(
                self.command, env=self.environment, stdout=output, stderr=self._errors
            )
        return Forked(
            *self._arguments, environment=self.environment, stdout=output, stderr=self._errors
        )

    @property
    def data(self) -> Path:
        """The data folder of the server."""
        return self.folder / "mooring"

    @property
    def login(self) -> str:
        """The login link that it printed."""
        return next(line.split()[1] for line in self.lines if line.startswith("console "))

    @property
    def admin_token(self) -> str:
        return (self.data / "admin-token").read_text().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, within: float = 30.0) -> int:
        return self.process.wait(timeout=within)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.lines += [line.rstrip() for line in self._output]
        self._output.close()
        logged = self.logged()
        self._errors.close()
        if self._spare is not None:
            self._spare.cleanup()
        assert "Traceback" not in logged, logged
        sys.stderr.write(logged)

    def logged(self) -> str:
        """The standard error so far."""
        self._errors.seek(0)
        return self._errors.read()
