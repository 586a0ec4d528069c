"""One module a noun, each with its `ENDPOINTS`; `endpoints()` is the whole table."""
