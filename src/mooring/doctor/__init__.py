"""What is well and what is wrong, in words: the checks behind `mooring doctor`.

`store` looks at a store, `redis` at a Redis that keeps a registry; both give `findings`.
"""

from mooring.doctor.findings import Finding, judge_clock
from mooring.doctor.redis import examine_redis, judge_coverage, judge_sentinels, judge_server
from mooring.doctor.store import examine, judge_member, judge_status

__all__ = [
    "Finding",
    "examine",
    "examine_redis",
    "judge_clock",
    "judge_coverage",
    "judge_member",
    "judge_sentinels",
    "judge_server",
    "judge_status",
]
