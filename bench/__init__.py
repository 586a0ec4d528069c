"""Measurements against the bare driver, the peers and our own targets: `python -m bench`."""

import os

# Else gRPC remarks on every process that is started while it is in use.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
