"""The registry on Redis: three tiers of keys, changed by one script each (contract R)."""
