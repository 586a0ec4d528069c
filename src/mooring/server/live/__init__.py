"""The live state of everything registered: the source of the API, the event stream and alerts.

`state` holds it, `polling` observes what no change reports, `timeline` keeps recent events and
metrics, `departures` finds out why instances left, `service_history` stores the known services,
`summary` defines the shapes of the API, `services` caches their JSON, and `problems` says what is
wrong.
"""
