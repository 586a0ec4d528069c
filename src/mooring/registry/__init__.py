"""The registry: who offers which service, where, and in what state.

`contract.py` says what a registry promises; `on_store.py` keeps it on a store through a layout."""
