"""What is registered, live: one picture for the API, the stream, metrics, alerts and checks.

`live` is the picture, `sampling` what is found out for it by asking, `timeline` what happened,
`history` the metrics of a while, `summary` the shapes in which the API shows it, and `rendering`
keeps those that are written.
"""
