"""HTTP, without a word about what is served.

`endpoint` declares what can be asked, `routing` finds it by the raw path, `calls` is a request as a
handler sees it, `answers` what it gives back, `errors` the one shape of what goes wrong, `paging`
cuts lists, and `openapi` describes it all.
"""
