"""Measurements against the bare driver, the peers and our own targets: `python -m bench`."""

import os

# Otherwise gRPC logs a warning for every process started while it is in use.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Otherwise it starts threads in processes that uvloop forks, and some crash before they exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
