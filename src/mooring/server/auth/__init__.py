"""Who asks, and what they may.

`principals` decides (pure), `tokens` and `sessions` say who it is, `folder` keeps the files,
`origins` tells requests of other sites, `limits` says when it is too much, `audit` writes down who
did what.
"""
