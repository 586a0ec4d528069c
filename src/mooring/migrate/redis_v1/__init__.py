"""From version 1.0 of the Redis registry to the three tiers (contract R12): a plan, a copy, a check
of it, a bridge while there are writers of version 1, and the end of version 1."""
