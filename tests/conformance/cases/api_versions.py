"""ApiVersions: the APIs that a server offers, and how it treats a client's software name."""

from __future__ import annotations

import struct
from functools import partial

from odradek.wire.api import ApiKey
from odradek.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.conformance.asking.talk import Talk, case
from tests.conformance.deliberate import NOT_SERVED

LATER = frozenset(key for group in NOT_SERVED for key in group.keys)


def _without_later_ones(response: ApiVersionsResponse) -> ApiVersionsResponse:
    """Return the answer without the APIs that are known to differ."""
    response.api_keys = [entry for entry in response.api_keys if entry.api_key not in LATER]
    return response


def _api_versions(talk: Talk, *, version: int, name: str = "conformance", software: str = "1.0") -> None:
    talk.ask(ApiVersionsRequest(name, software), version, _without_later_ones)


for _version in range(5):
    case(f"api_versions v{_version}")(partial(_api_versions, version=_version))
for _label, _name, _software in (
    ("empty name", "", "1.0"),
    ("empty version", "x", ""),
    ("blank in name", "a b", "1.0"),
    ("starts with dash", "-x", "1.0"),
    ("ends with dot", "x.", "1.0"),
    ("not ascii", "ü", "1.0"),
    ("one character", "x", "1"),
    ("dots and dashes", "a.b-c", "1.0-rc.1"),
    ("underscore", "a_b", "1"),
    ("line feed", "a\n", "1"),
):
    case(f"api_versions client software: {_label}")(
        partial(_api_versions, version=3, name=_name, software=_software)
    )


@case("api_versions of a version to come")
def _(talk: Talk) -> None:
    body = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, 3) + b"raw" + b"\0"
    talk.send(struct.pack(">i", len(body)) + body, ApiKey.API_VERSIONS, 0)
