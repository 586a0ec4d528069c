"""A small fleet that plays for a newcomer: it registers, fails, drains and recovers.

`play` is what happens when (pure), `gauges` the metrics that look alive, `actors` those who
register, `props` the lock and the tenants, and `stage` brings them all together.
"""
