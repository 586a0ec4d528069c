"""Active health checks: one checker a protocol, and who runs them."""
