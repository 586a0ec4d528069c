"""HTTP without knowledge of Mooring's resources.

`routing` finds the target of a raw path, `request` parses queries, bodies and pages, and `response`
encodes JSON, ETags and errors.
"""
