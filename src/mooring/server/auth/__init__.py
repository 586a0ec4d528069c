"""Authentication, authorization and audit of the server's HTTP API.

`tokens` and `sessions` authenticate callers, `authorization` decides what they may do,
`host_and_csrf` rejects foreign hosts and requests of other sites, `rate_limits` limits requests,
and `audit` records writes. `record_store` decides where credentials are kept, `signed_records`
authenticates them, and `data_dir` holds the server's own files.
"""
