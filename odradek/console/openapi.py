"""Writes the description of the API (OpenAPI 3.1) from the routes and the classes of their queries and answers. PURE."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Union, get_args, get_origin, get_type_hints

import attrs

import odradek
from odradek.console.routes import ROUTES
from odradek.console.shapes.documents import encode_document
from odradek.console.shapes.fields import FieldAbout, about_of, public_name
from odradek.console.shapes.queries import TEXT_MAX, without_none
from odradek.console.views.route import Kind, Route

__all__ = ["description"]

Document = dict[str, object]

_INT64 = (-(1 << 63), (1 << 63) - 1)
_ERRORS = {
    "400": "a word of the address is wrong",
    "401": "the user has to log in",
    "403": "the user lacks a right, or the request comes from another site",
    "404": "there is no such thing",
    "405": "the method does not fit the address",
    "408": "the request did not arrive in time",
    "413": "the body is too long",
    "421": "the console is not known by this name",
    "429": "too many attempts, or a quota of the cluster",
    "431": "the head of the request is too long",
    "500": "a bug of the console",
    "501": "the cluster lacks this function",
    "502": "no broker could be reached, or it refused for a reason without a status of its own",
    "503": "too busy, or the cluster cannot answer just now",
    "504": "the cluster did not answer in time",
}
_NO_CONTROLS = r"^[^\u0000-\u001f\u007f]*$"


class _Shapes:
    """The schemas of classes, each written once."""

    def __init__(self) -> None:
        self.schemas: Document = {}

    def of(self, kind: object, about: FieldAbout | None = None) -> Document:
        """Return the schema of a type."""
        schema = self._of(kind)
        if about is not None:
            schema = {**schema, **({"description": about.text} if about.text else {})}
            if about.choices:
                schema["enum"] = [*about.choices, *([None] if _is_optional(kind) else [])]
        return schema

    def _of(self, kind: object) -> Document:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            options = [self._of(each) for each in arguments]
            return {"anyOf": options}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self._of(arguments[1])}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self._of(arguments[0])}
        simple = _SIMPLE.get(kind) if isinstance(kind, type) else None
        if simple is not None:
            return {"type": simple}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [each.value for each in kind]}
        if kind is object:
            return {}
        assert isinstance(kind, type), f"{kind} has no schema"
        assert attrs.has(kind), f"{kind} has no schema"
        return self._of_class(kind)

    def _of_class(self, kind: type) -> Document:
        name = kind.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # for classes that contain themselves
            hints = get_type_hints(kind)
            fields = attrs.fields(kind)
            self.schemas[name] = {
                "type": "object",
                "description": _sentence(kind.__doc__),
                "properties": {
                    public_name(each.name): self.of(hints[each.name], about_of(each.metadata))
                    for each in fields
                },
                "required": [public_name(each.name) for each in fields],
                "additionalProperties": False,
            }
        return {"$ref": f"#/components/schemas/{name}"}


_SIMPLE: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}


def _is_optional(kind: object) -> bool:
    return type(None) in get_args(kind)


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


@cache
def description() -> bytes:
    """Return the description as JSON."""
    shapes = _Shapes()
    error = {
        "type": "object",
        "properties": {
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "a stable name"},
            "sentence": {"type": "string", "description": "what is wrong, and what to do"},
        },
        "required": ["status", "code", "sentence"],
        "additionalProperties": False,
    }
    paths = {route.path: {"get": _operation(route, shapes)} for route in ROUTES}
    paths["/api/events"] = {"get": _events()}
    paths["/api/login"] = {"post": _login()}
    paths["/api/logout"] = {"post": _logout()}
    shapes.schemas["Error"] = error
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Odradek's console",
            "version": odradek.__version__,
            "description": "What the pages of the console ask. It only reads, with the rights of its user.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": shapes.schemas},
    }
    return encode_document(document)


def _operation(route: Route, shapes: _Shapes) -> Document:
    if route.kind is Kind.ONCE:
        content: Document = {"application/json": {"schema": shapes.of(route.answer)}}
    elif route.kind is Kind.EVENTS:
        assert isinstance(route.answer, Mapping)
        events = {name: shapes.of(kind) for name, kind in route.answer.items()}
        content = {"text/event-stream": {"schema": {"type": "string"}, "x-events": events}}
    else:
        content = {"*/*": {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}}
    return {
        "operationId": re.sub(r"\W+", "_", route.path.removeprefix("/api/")).strip("_"),
        "summary": route.about,
        "parameters": _parameters(route),
        "responses": {"200": {"description": "the answer", "content": content}, **_failures()},
    }


def _failures() -> Document:
    return {status: _failure(text) for status, text in _ERRORS.items()}


_ERROR_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


def _failure(text: str) -> Document:
    return {"description": text, "content": _ERROR_CONTENT}


def _parameters(route: Route) -> list[Document]:
    hints = get_type_hints(route.query)
    found: list[Document] = []
    for each in attrs.fields(route.query):
        name, about = public_name(each.name), about_of(each.metadata)
        in_path = f"{{{name}}}" in route.parts
        found.append(
            {
                "name": name,
                "in": "path" if in_path else "query",
                "required": in_path or each.default is attrs.NOTHING,
                "description": about.text,
                "schema": _word_schema(without_none(hints[each.name]), about),
            }
        )
    return found


def _word_schema(kind: object, about: FieldAbout) -> Document:
    if kind is bool:
        return {"enum": ["0", "1", "true", "false"]}
    if kind is int:
        low, high = _INT64
        return {
            "type": "integer",
            "minimum": low if about.minimum is None else about.minimum,
            "maximum": high if about.maximum is None else about.maximum,
        }
    if about.choices:
        return {"type": "string", "enum": list(about.choices)}
    longest = TEXT_MAX if about.maximum is None else about.maximum
    return {"type": "string", "maxLength": longest, "pattern": about.pattern or _NO_CONTROLS}


def _events() -> Document:
    views = sorted(route.path.removeprefix("/api/") for route in ROUTES if route.kind is Kind.ONCE)
    return {
        "operationId": "events",
        "summary": "Listen to a view: its answer comes again every two seconds, or less often if it is expensive.",
        "description": f"All other words are those of the view. The views are: {', '.join(views)}.",
        "parameters": [
            {
                "name": "view",
                "in": "query",
                "required": False,
                "description": "the view, such as overview or topics/NAME",
                "schema": {"type": "string", "default": "overview"},
            }
        ],
        "responses": {
            "200": {
                "description": "events with the name of the view; `trouble` if it cannot answer",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_failures(),
        },
    }


_DONE = {"description": "done", "content": {"application/json": {"schema": {"type": "object"}}}}


def _login() -> Document:
    text = {"type": "string", "minLength": 1, "maxLength": 16384}
    return {
        "operationId": "login",
        "summary": "Log in with a name and a password, a token, or the connection's certificate; the answer sets a cookie.",
        "description": "The request must say that it comes from the console, by Origin or Sec-Fetch-Site.",
        "parameters": [],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "mechanism": text,
                            "user": text,
                            "password": text,
                            "token": text,
                            "certificate": {"const": True},
                        },
                    }
                }
            },
        },
        "responses": {"200": _DONE, **_failures(), "415": _failure("the body is no JSON")},
    }


def _logout() -> Document:
    return {
        "operationId": "logout",
        "summary": "Log out.",
        "description": "The request must say that it comes from the console, by Origin or Sec-Fetch-Site.",
        "parameters": [],
        "responses": {"200": _DONE, **_failures()},
    }
