"""Active health checks: whether the server can reach the registered instances, and how fast.

`scheduler` runs the checks, `checkers` has a checker for each protocol, and `target_policy` decides
which addresses may be probed.
"""
