"""The English texts of errors, by the part of Mooring that raises them."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, str] = {
    # Values that have no text of their own.
    "a_map": "a map",
    "a_list": "a list",
    "a_set": "a set",
    "a_large_number": "a very large number",
    "an_object": "an object of type {type}",
    "missing_extra": "{what} needs an optional dependency: pip install {package!q}",
    # Values that do not have the expected form.
    "value_rejected": "[{place} ]{problem}",
    "value_rejected_because": "[{place}: ]{problem}",
    "value_at": "{whole}: {path}",
    "the_query": "the query",
    "the_body": "the body",
    "the_settings": "the settings",
    "the_value": "the value",
    "value_not_utf8": "is not UTF-8",
    "value_too_deep": "is nested too deeply",
    "value_not_allowed": "{value!q} is not an allowed value",
    "wrong_type": "must be {wanted}, not {sent}",
    "wrong_length": "must have {bound} characters",
    "wrong_count": "must have {bound} entries",
    "out_of_range": "must be {bound}",
    "pattern_mismatch": "does not match the pattern {pattern}",
    "field_missing": "has no {field}",
    "field_unknown": "has an unknown field {field}",
    "json_invalid": "is not valid JSON: {problem} at byte {byte}",
    "json_truncated": "is not valid JSON: it ends too early",
    "type_list": "a list",
    "type_boolean": "true or false",
    "type_bytes": "text in base64",
    "type_time": "a time such as 2026-01-31T09:26:53Z",
    "type_number": "a number",
    "type_integer": "a whole number",
    "type_null": "null",
    "type_object": "an object",
    "type_text": "text",
    "types_or": "{first} or {last}",
    "types_and_more": "{first}, {second}",
    "at_most": "at most {limit}",
    "at_least": "at least {limit}",
    "exactly": "exactly {limit}",
    "less_than": "less than {limit}",
    "more_than": "more than {limit}",
    # Names, addresses and durations.
    "name_invalid": "the {what} name {name!q} {problem}",
    "what_domain": "domain",
    "what_group": "group",
    "what_service": "service",
    "name_not_text": "must be text",
    "name_empty": "is empty",
    "name_too_long": "is longer than {limit} characters",
    "name_has_slash": "contains a slash",
    "name_has_control": "contains a control character",
    "name_has_space_around": "starts or ends with a space",
    "name_is_folder": "means a folder",
    "name_has_colon_or_space": "contains a colon or a space",
    "service_not_text": "the name of a service must be text, not {name!q}",
    "service_too_long": "the service {name!q} is too long: {limit} characters is the limit",
    "service_two_slashes": "the service {name!q} has two slashes: write it as group/name",
    "service_reserved": "the service name 'info' in {name!q} is reserved for descriptions",
    "address_invalid": (
        "{address!q} is not an address: write it like 192.168.0.1:8080 or [::1]:8080"
    ),
    "host_not_text": "a host must be an IP address or a host name, not {host!q}",
    "host_in_zone": (
        "{host} ends in a zone (%{zone}), which names a network interface of one machine: other "
        "machines cannot call it. Use an address without a zone"
    ),
    "host_in_brackets": "{host} has brackets: write an IPv6 host without them",
    "host_invalid": "{host!q} is neither an IP address nor a host name",
    "host_not_an_ip": "{host!q} looks like an IP address, but is not a valid one",
    "host_unspecified": (
        "{host} means every address of a machine, and others cannot call it: use the address that "
        "others can reach, or none to have it determined automatically"
    ),
    "port_invalid": "port {port!q} is not between 1 and 65535",
    "duration_invalid": "{text!q} is not a duration: write it like 10s, 1m30s or 250ms",
    # Instances and the registry.
    "service_not_found": "service {service!q} not found[: did you mean {close!q}?]",
    "group_not_found": "group {group!q} not found[: did you mean {close!q}?]",
    "instance_not_found": "{service} has no instance {id!q}[: did you mean {close!q}?]",
    # Locks.
    # Stores.
    "lease_not_found": (
        "lease {lease} is not known to the store: it expired or was revoked; grant a new one"
    ),
    "compacted": (
        "revision {asked} is compacted[, the history starts at {start}]: read the current state "
        "again and continue from its revision"
    ),
    "future_revision": (
        "revision {asked} has not happened yet: the store may have been restored from a backup; "
        "read the current state again"
    ),
    # Tenants.
    # Requests to the server.
    "internal_error": "internal error: the server's log has the details",
    "no_endpoint": (
        "no endpoint at {path}: see /admin/openapi.json. Write the slash between a group and a "
        "service as %2F"
    ),
    "path_empty_segment": "the path has an empty segment",
    "path_bad_escape": "the path has a % without two hex digits",
    "path_not_utf8": "the path is not valid UTF-8",
    "path_has_control": "the path contains a control character",
    "path_too_long": "a segment of the path exceeds {limit} characters",
    "method_not_supported": "{method} is not supported here: use {allowed}",
}
