"""A certificate without rights sends every request to a controller. A client without rights sends every request to a
broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from odradek.cli.dev_security import NODE_NAME
from odradek.wire.api import api_versions, request_class
from odradek.wire.api_keys import APIS, ApiKey
from odradek.wire.errors import ErrorCode, LocalProtocolError
from odradek.wire.structure import Structure, version_range
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import ATTACKERS_HOST, Conn

WHO = "client"
SETTINGS = {"super.users": f"User:admin;User:CN={NODE_NAME}"}
"""The node knows the administrator's certificate, but gives it no rights."""
SECRET = "secret-x"
REFUSALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Error codes that count as a refusal. UNKNOWN_TOPIC_ID refuses topic ids that do not exist."""
LOGINS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
OPEN_TO_ALL = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
    }
)
"""APIs that need no right: a client manages its own tokens and pushes its own metrics. `checks` attacks tokens of other
users."""
SHOWS_ONES_OWN = frozenset({ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER})
"""APIs that answer every client, but list only what it may see: nothing at all, or the addresses of the brokers."""


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Send each API an empty request and a request with one element in each list.

    The full form uses all versions of an API, the short form the oldest and the newest.
    """
    certificate = place.certificate("admin")

    def as_certificate() -> Conn:
        return Conn(place.ports.CONTROLLER, tls=True, certificate=certificate, source=ATTACKERS_HOST)

    every = scale >= 1
    asked, let_in = _ask_everything(as_certificate, OPEN_TO_ALL, every)
    yield Outcome(
        "a controller refuses a certificate that has no rights", not let_in, f"{asked} requests, {let_in}"
    )
    asked, let_in = _ask_everything(place.client, OPEN_TO_ALL | SHOWS_ONES_OWN, every)
    yield Outcome("a broker refuses a client that has no rights", not let_in, f"{asked} requests, {let_in}")


def _ask_everything(
    connect: Callable[[], Conn], is_open: frozenset[ApiKey], every: bool
) -> tuple[int, list[str]]:
    """Send every request. Return how many were sent, and those that the node did not refuse."""
    conn, asked, let_in = connect(), 0, []
    for key in map(ApiKey, sorted(set(APIS) - LOGINS)):
        first, last = api_versions(key)
        for version in range(first, last + 1) if every else {first: None, last: None}:
            for is_filled in (False, True):
                request = _filled(request_class(key), version) if is_filled else request_class(key)()
                if key is ApiKey.PRODUCE:
                    request.acks = -1  # With acks=0 there would be no answer.
                asked += 1
                try:
                    answer = conn.call(request, version)
                except LocalProtocolError:
                    continue  # This version cannot encode the request.
                except ConnectionError:
                    conn.close()
                    conn = connect()
                    continue
                if key not in is_open and is_filled and _is_let_in(answer, version):
                    let_in.append(f"{key.name} v{version}: {answer!r:.200}")
    conn.close()
    return asked, let_in


def _is_let_in(answer: Any, version: int) -> bool:
    """True if the answer holds data and is no refusal."""
    codes = _codes(answer, version, set())
    return not codes & REFUSALS and (0 in codes or not codes) and _holds_something(answer)


def _codes(value: Any, version: int, found: set[int]) -> set[int]:
    """Return all error codes in an answer, leaving out fields that this version does not have."""
    if isinstance(value, list):
        for each in value:
            _codes(each, version, found)
    elif isinstance(value, Structure):
        for field in value.__attrs_attrs__:
            inner = getattr(value, field.name)
            if not field.name.endswith("error_code"):
                _codes(inner, version, found)
            elif _is_sent(field, version):
                found.add(int(inner))
    return found


def _holds_something(answer: Any) -> bool:
    """True if one of the answer's lists has an element, or if the answer has no lists at all."""
    lists = [getattr(answer, each.name) for each in answer.__attrs_attrs__]
    lists = [each for each in lists if isinstance(each, list)]
    return not lists or any(lists)


def _is_sent(field: Any, version: int) -> bool:
    first, last = version_range(field.metadata["kafka"].versions)
    return first <= version <= last


def _filled(kind: type[Any], version: int) -> Any:
    """Make a structure with one element in each list and a text in each name."""
    made = kind()
    for field in made.__attrs_attrs__:
        if _is_sent(field, version):
            kind_of_field = field.metadata["kafka"].type
            setattr(made, field.name, _value(kind_of_field, getattr(made, field.name), version))
    return made


def _value(kind: Any, default: Any, version: int) -> Any:
    if isinstance(kind, list):
        return [_value(kind[0], _ELEMENTS.get(kind[0]), version)]
    if isinstance(kind, type):
        return _filled(kind, version)
    return SECRET if kind == "string" else default


_ELEMENTS: dict[Any, Any] = {"string": SECRET, "uuid": bytes(15) + b"\1", "bool": False, "bytes": b""} | {
    f"int{bits}": 0 for bits in (8, 16, 32, 64)
}
