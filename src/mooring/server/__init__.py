"""`mooring serve`: one process that serves a store over HTTP, etcd's API and xDS.

`settings` is the configuration, `lifecycle` starts and stops everything, `app` handles HTTP
requests, and `api` contains the endpoints.
"""
