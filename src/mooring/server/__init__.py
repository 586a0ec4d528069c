"""`mooring serve`: one process that answers for a store, over etcd's API, over xDS and over
HTTP.

`settings` is the configuration, `health` the HTTP face, `serving` what runs and how it stops.
"""
