"""Migration from version 1.0 of the Redis registry (v1) to the three tiers of version 2 (v2)
(contract R12)."""
