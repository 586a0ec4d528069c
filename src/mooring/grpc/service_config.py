"""The service config of a channel: the caller's own, merged with what the channel needs. Pure.

What the caller's config sets wins: `loadBalancingConfig`, `healthCheckConfig`, `retryThrottling`
and every `methodConfig` stay as they are. What it leaves out is filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mooring.errors import InvalidRequest
from mooring.formatting import describe, quoted
from mooring.grpc.target import Repeatable

OPTION = "grpc.service_config"

Options: TypeAlias = Sequence[tuple[str, Any]]
Health: TypeAlias = bool | str
Config: TypeAlias = dict[str, Any]

_THROTTLING = {"maxTokens": 100, "tokenRatio": 0.2}
"""Fifty failures, and one for every five successes, as on asyncio."""


def merged(
    options: Options, health: Health, repeatable: Repeatable | None = None, tries: int = 1
) -> str:
    """The JSON of the config: round robin, health checks unless `health` is False, and gRPC's own
    retries of the `repeatable` methods. Raises `InvalidRequest` if the caller's config is invalid,
    or contradicts the arguments."""
    if not isinstance(health, bool | str):
        raise InvalidRequest(f"health is True, False or a service's name, not {quoted(health)}")
    config = _given(options)
    if "loadBalancingPolicy" not in config:
        # gRPC checks health with this policy only, also if there is but one address.
        config.setdefault("loadBalancingConfig", [{"round_robin": {}}])
    if isinstance(health, str) and "healthCheckConfig" in config:
        raise InvalidRequest(
            "health names a service, and the option grpc.service_config has a healthCheckConfig: "
            "leave one of them out"
        )
    if health is not False:
        name = "" if health is True else health
        config.setdefault("healthCheckConfig", {"serviceName": name})
    if repeatable is not None and repeatable.names and tries > 1:
        config["methodConfig"] = _with_retries(config.get("methodConfig", []), repeatable, tries)
        config.setdefault("retryThrottling", _THROTTLING)
    return json.dumps(config)


def _given(options: Options) -> Config:
    """The caller's config. gRPC takes the first of two options of one name."""
    text = next((value for name, value in options if name == OPTION), "{}")
    try:
        config = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the option {OPTION} is not valid JSON: {describe(error)}") from None
    methods = config.get("methodConfig", []) if isinstance(config, dict) else None
    if not isinstance(methods, list) or not all(isinstance(each, dict) for each in methods):
        raise InvalidRequest(
            f"the option {OPTION} must be a JSON object, and its methodConfig a list of objects"
        )
    return dict(config)


Name: TypeAlias = tuple[str, str]
"""Service and method. An empty method stands for all methods, an empty service for all services."""


def _with_retries(methods: Sequence[Config], repeatable: Repeatable, tries: int) -> list[Config]:
    """Add a retry policy for each repeatable method. gRPC applies only the most specific entry to
    a call, so a new entry repeats what the caller set for the method, and an entry of the caller's
    that is more specific than a new one gets the policy too."""
    policy = {
        "maxAttempts": tries,  # gRPC makes five at the most
        "initialBackoff": "0.01s",
        "maxBackoff": "0.1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    entries: dict[Name, Config] = {}
    for entry in methods:
        settings = {key: value for key, value in entry.items() if key != "name"}
        entries |= dict.fromkeys(_names(entry), settings)
    added: dict[Name, Config] = {}
    for service, method in repeatable.names:
        if "retryPolicy" in entries.get((service, method), {}):
            raise InvalidRequest(
                f"retry names {service}{'/' * bool(method)}{method}, for which the option {OPTION} "
                "has a retryPolicy: leave one of them out"
            )
        less_specific = ((service, method), (service, ""), ("", ""))
        inherited: Config = next((entries[name] for name in less_specific if name in entries), {})
        added[service, method] = {**inherited, "retryPolicy": policy}
        for name, settings in entries.items():
            if not method and name[0] == service and name[1] and "retryPolicy" not in settings:
                added.setdefault(name, {**settings, "retryPolicy": policy})
    return [{"name": [_name(*name)], **settings} for name, settings in {**entries, **added}.items()]


def _names(entry: Config) -> Iterator[Name]:
    for name in entry.get("name", []):
        if not isinstance(name, Mapping):
            raise InvalidRequest(f"the option {OPTION}: each name in methodConfig is an object")
        yield str(name.get("service", "")), str(name.get("method", ""))


def _name(service: str, method: str) -> Config:
    return {**({"service": service} if service else {}), **({"method": method} if method else {})}
