"""The APIs of Kafka 4.3: their keys, their versions, their header versions and their message classes.

A module of messages is imported when `request_class` or `response_class` first needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

from odradek.wire.api_keys import APIS, Api, ApiKey
from odradek.wire.errors import LocalProtocolError

if TYPE_CHECKING:
    from odradek.wire.structure import Message

__all__ = [
    "PRODUCE_ADVERTISED_MIN",
    "Api",
    "ApiKey",
    "advertised_versions",
    "api_name",
    "api_versions",
    "request_class",
    "request_header_version",
    "response_class",
    "response_header_version",
]

PRODUCE_ADVERTISED_MIN: Final = 0
"""The first version of Produce that ApiVersions responses list. Versions below 3 are listed but refused, as
in Kafka: librdkafka before 2.11.1 needs version 0 in the list (KAFKA-18659).
"""

_requests: dict[int, type[Message]] = {}
_responses: dict[int, type[Message]] = {}


def _api(key: int) -> Api:
    try:
        return APIS[key]
    except KeyError:
        raise LocalProtocolError(f"Kafka's protocol has no API with the key {key}") from None


def api_name(key: int) -> str:
    """Return an API's name as Kafka writes it, for example `OffsetForLeaderEpoch`."""
    return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))


def api_versions(key: int, *, unstable: bool = False) -> tuple[int, int]:
    """Return the first and last version of an API that Kafka 4.3 serves. An unstable last version is left out
    unless `unstable` is true.
    """
    api = _api(key)
    return api.first_version, api.last_version - (api.latest_version_unstable and not unstable)


def advertised_versions(
    listener: Literal["broker", "controller"], *, unstable: bool = False
) -> list[tuple[int, int, int]]:
    """List the entries of a node's ApiVersions response: (API key, first version, last version), ordered by key."""
    result = []
    for key, api in APIS.items():
        if api.on_broker if listener == "broker" else api.on_controller:
            first, last = api_versions(key, unstable=unstable)
            result.append((key, PRODUCE_ADVERTISED_MIN if key == ApiKey.PRODUCE else first, last))
    return result


def _message_class(key: int, suffix: str) -> type[Message]:
    module = import_module(f"odradek.wire.messages.{_api(key).module}")
    found: type[Message] = next(
        value
        for name, value in vars(module).items()
        if name.endswith(suffix) and getattr(value, "API_KEY", None) == key
    )
    return found


def request_class(key: int) -> type[Message]:
    """Return the class of an API's request message. Imports its module at the first call."""
    found = _requests.get(key)
    if found is None:
        found = _requests[key] = _message_class(key, "Request")
    return found


def response_class(key: int) -> type[Message]:
    """Return the class of an API's response message. Imports its module at the first call."""
    found = _responses.get(key)
    if found is None:
        found = _responses[key] = _message_class(key, "Response")
    return found


def request_header_version(key: int, version: int) -> int:
    """Return the version of a request's header: 2 (with tagged fields) for a flexible API version, else 1."""
    return 2 if version >= _api(key).flexible_since else 1


def response_header_version(key: int, version: int) -> int:
    """Return the version of a response's header. It is 1 (with tagged fields) for a flexible API version,
    otherwise 0.

    It is always 0 for ApiVersions, because a client must be able to read the answer to a version that the
    node lacks (KIP-511).
    """
    return 1 if version >= _api(key).flexible_since and key != ApiKey.API_VERSIONS else 0
