"""The contract of every registry: on every store, in every layout, and on Redis (`conftest`)."""
