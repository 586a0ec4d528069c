"""Measurements against the bare driver, the peers and our own targets: `python -m bench`."""

import os

# Else gRPC remarks on every process that is started while it is in use.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Else it starts threads in what uvloop forks, which kill some of those before they become anything.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
