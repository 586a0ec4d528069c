"""What every registry promises, on every store, in every layout, and on Redis: see `conftest`."""
