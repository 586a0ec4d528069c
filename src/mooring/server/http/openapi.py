"""OpenAPI 3.1 of a table of endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from mooring.server.http.response import ErrorBody
from mooring.server.http.routing import SAFE, ApiRoute
from mooring.tenants.keys import AREAS, MAX_ID

REF = "#/components/schemas/{name}"

Schema = dict[str, Any]

_CONTROL = r"\x00-\x1f\x7f-\x9f"
_NAME = rf"[^/\s{_CONTROL}](?:[^/{_CONTROL}]*[^/\s{_CONTROL}])?"
TEXT: Schema = {"type": "string", "minLength": 1, "pattern": f"^[^{_CONTROL}]+$"}
PARAMETERS: Mapping[str, Schema] = {
    "area": {"type": "string", "enum": list(AREAS)},
    "id": {**TEXT, "examples": ["10.0.0.1:8080"]},
    "key": {
        "type": "string",
        "minLength": 1,
        "pattern": f"^[^/{_CONTROL}]+(?:/[^/{_CONTROL}]+)*$",
        "examples": ["resolver", "mail"],
    },
    "name": {**TEXT, "examples": ["nightly", "jobs/nightly"]},
    "service": {
        "type": "string",
        "minLength": 1,
        "pattern": f"^(?:{_NAME}/)?{_NAME}$",
        "examples": ["Auth", "Common/Auth"],
    },
    "tenant": {"type": "integer", "minimum": 1, "maximum": MAX_ID, "examples": [7]},
    "version": {"type": "integer", "minimum": 1, "examples": [1]},
}
"""Those of the path that are not any text, by name."""
BODILESS = (204, 303)


def describe(endpoints: Iterable[ApiRoute], *, title: str, version: str, cookie: str) -> Schema:
    listed = sorted(endpoints, key=lambda each: (each.path, each.method))
    types = [ErrorBody]
    for endpoint in listed:
        types += [each for each in (endpoint.body, endpoint.query) if each is not None]
        types += [each for each in endpoint.answers.values() if each is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Schema]] = {}
    for endpoint in listed:
        told = paths.setdefault(endpoint.path, {})
        told[endpoint.method.lower()] = _operation(endpoint, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": cookie},
            },
        },
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(
    endpoint: ApiRoute, by_type: Mapping[str, Schema], components: Mapping[str, Any]
) -> Schema:
    operation: Schema = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.path.strip("/").split("/")[0] or "console"],
        "security": [{"token": []}, {"session": []}] if endpoint.needs.roles else [],
        "responses": _responses(endpoint, by_type),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": PARAMETERS.get(name, TEXT)}
        for name in endpoint.parameters
    ]
    if endpoint.query is not None:
        parameters += _query(by_type[_key(endpoint.query)], components)
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[_key(endpoint.body)]}},
        }
    return operation


def _name(endpoint: ApiRoute) -> str:
    words = re.findall(r"[A-Za-z0-9]+", endpoint.path)
    return "_".join([endpoint.method.lower(), *words])


def _query(schema: Schema, components: Mapping[str, Any]) -> list[Schema]:
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": told}
        for name, told in schema["properties"].items()
    ]


def _responses(endpoint: ApiRoute, by_type: Mapping[str, Schema]) -> Schema:
    responses: Schema = {}
    for status, kind in sorted(endpoint.answers.items()):
        told: Schema = {"description": HTTPStatus(status).phrase}
        if kind is not None:
            told["content"] = {"application/json": {"schema": by_type[_key(kind)]}}
        elif status not in BODILESS:
            told["content"] = {endpoint.media: {"schema": {"type": "string"}}}
        responses[str(status)] = told
    if endpoint.method in SAFE and 200 in endpoint.answers:
        responses["304"] = {"description": HTTPStatus(304).phrase}
    for status in errors_of(endpoint):
        content = {"application/json": {"schema": by_type[_key(ErrorBody)]}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    return responses


def errors_of(endpoint: ApiRoute) -> list[int]:
    """The errors that an endpoint may answer with."""
    told = {400, 421, 429, *endpoint.fails}
    if endpoint.needs.roles is not None:
        told |= {401, 403, 503}
    if endpoint.parameters:
        told |= {404}
    if endpoint.method not in SAFE:
        told |= {408, 409, 413, 415, 504, 507}
    return sorted(told)
