"""What is registered, live: one picture for the API, the stream, metrics, alerts and checks.

`live` is the picture, `timeline` what happened, `history` the metrics of a while, `summary` the
shapes in which the API shows it.
"""
