"""Active health checks: whether the server can reach the registered instances, and how fast.

`scheduler` runs the checks, `checkers` has a checker for each protocol, and `target_policy` decides
which addresses may be probed.
"""

from mooring.server.health_checks.checkers import Checker, Outcome, Target
from mooring.server.health_checks.target_policy import TargetPolicy, policy

__all__ = ["Checker", "Outcome", "Target", "TargetPolicy", "policy"]
