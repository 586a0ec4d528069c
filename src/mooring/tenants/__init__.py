"""Tenant configuration: published atomically with its indexes, read from immutable snapshots."""
