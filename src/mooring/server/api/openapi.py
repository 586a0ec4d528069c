"""`/admin/openapi.json`: OpenAPI 3.1 of the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from mooring import __version__
from mooring.server.api.endpoint import ApiCall, ApiEndpoint, EndpointList
from mooring.server.auth.authorization import ROLES, Need
from mooring.server.http.response import ErrorBody, Response, encode
from mooring.server.http.routing import SAFE
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
"""The schemas of path parameters that are more than text, by name."""
BODILESS = (204, 303)


def openapi_endpoints(described: Iterable[ApiEndpoint]) -> EndpointList:
    """The endpoint of a document that describes these endpoints and itself."""
    endpoints = EndpointList()
    documents: dict[str, bytes] = {}  # by the name of the session cookie

    @endpoints.add(
        "GET", "/admin/openapi.json", Need(frozenset(ROLES)), answers={200: dict[str, Any]}
    )
    async def openapi(call: ApiCall) -> Response:
        """Get this OpenAPI document."""
        cookie = call.server.sessions.cookie
        if cookie not in documents:
            documents[cookie] = encode(describe([*endpoints, *described], cookie=cookie))
        return Response(documents[cookie])

    return endpoints


def describe(endpoints: Iterable[ApiEndpoint], *, cookie: str) -> Schema:
    """The OpenAPI document of these endpoints. `cookie` is the name of the session cookie."""
    ordered = sorted(endpoints, key=lambda endpoint: (endpoint.path, endpoint.method))
    types: list[Any] = [ErrorBody]
    for endpoint in ordered:
        kinds = (endpoint.body, endpoint.query, *endpoint.answers.values())
        types += [kind for kind in kinds if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    for schema in components.values():
        if "description" in schema:  # a docstring, with line breaks and indentation
            schema["description"] = " ".join(schema["description"].split())
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Schema]] = {}
    for endpoint in ordered:
        operations = paths.setdefault(endpoint.path, {})
        operations[endpoint.method.lower()] = _operation(endpoint, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mooring", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": cookie},
            },
        },
    }


def _operation(
    endpoint: ApiEndpoint, by_type: Mapping[str, Schema], components: Mapping[str, Any]
) -> Schema:
    words = re.findall(r"[A-Za-z0-9]+", endpoint.path)
    operation: Schema = {
        "operationId": "_".join([endpoint.method.lower(), *words]),
        "summary": endpoint.summary,
        "tags": [endpoint.path.strip("/").split("/")[0] or "console"],
        "security": [{"token": []}, {"session": []}] if endpoint.needs.roles else [],
        "responses": _responses(endpoint, by_type),
    }
    described = [
        {"name": name, "in": "path", "required": True, "schema": PARAMETERS.get(name, TEXT)}
        for name in endpoint.parameters
    ]
    if endpoint.query is not None:
        described += _query(by_type[repr(endpoint.query)], components)
    if described:
        operation["parameters"] = described
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[repr(endpoint.body)]}},
        }
    return operation


def _query(schema: Schema, components: Mapping[str, Any]) -> list[Schema]:
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _responses(endpoint: ApiEndpoint, by_type: Mapping[str, Schema]) -> Schema:
    responses: Schema = {}
    for status, kind in sorted(endpoint.answers.items()):
        response: Schema = {"description": HTTPStatus(status).phrase}
        if kind is not None:
            response["content"] = {"application/json": {"schema": by_type[repr(kind)]}}
        elif status not in BODILESS:
            response["content"] = {endpoint.media: {"schema": {"type": "string"}}}
        responses[str(status)] = response
    if endpoint.method in SAFE and 200 in endpoint.answers:
        responses["304"] = {"description": HTTPStatus(304).phrase}
    for status in errors_of(endpoint):
        content = {"application/json": {"schema": by_type[repr(ErrorBody)]}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    return responses


def errors_of(endpoint: ApiEndpoint) -> list[int]:
    """The errors that an endpoint may return."""
    statuses = {400, 421, 429, *endpoint.fails}
    if endpoint.needs.roles is not None:
        statuses |= {401, 403, 503}
    if endpoint.parameters:
        statuses |= {404}
    if endpoint.method not in SAFE:
        statuses |= {408, 409, 413, 415, 504, 507}
    return sorted(statuses)
