"""Active health checks: whether the server itself reaches what is registered, and how fast.

`contract` says what a checker is, `choosing` which one is for which protocol; `http`, `websocket`,
`tcp` and `grpc` are those that come with Mooring. `targets` says what may be probed at all, and
`running` probes.
"""
