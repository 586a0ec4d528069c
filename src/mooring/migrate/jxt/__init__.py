"""From the old keys of tenant configuration to the new (contract T11): a plan, a copy, a check of
it, a bridge while there are programs of both, the cut-over, and the end of the old keys."""
