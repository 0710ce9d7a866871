"""Parsers of configuration values. PURE.

A parser converts a value to its type, or raises `ValueError`, which describes the expected form. The value may be a
string, as in a properties file, or a Python value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from odradek.client.core.bootstrap import parse_bootstrap
from odradek.client.core.client_security import PROTOCOLS

Parser = Callable[[Any], Any]
_LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


def integer(low: int, high: int) -> Parser:
    """Make a parser that accepts whole numbers from `low` to `high`."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError("expected a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return number

    return parse


def boolean(value: Any) -> bool:
    """Parse `true` or `false`, in upper or lower case, or accept a bool."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("expected true or false")
    return word == "true"


def text(value: Any) -> str:
    """Accept a string, and return it unchanged."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return value


def optional_text(value: Any) -> str | None:
    """Accept a string or None. Return None for an empty string."""
    if value is None:
        return None
    if not text(value):
        raise ValueError("expected a text that is not empty, or None")
    return str(value)


def one_of(*names: str) -> Parser:
    """Make a parser that accepts one of these strings."""

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return str(value)

    return parse


def one_of_lower(*names: str) -> Parser:
    """Make a parser that accepts one of these strings in upper or lower case, and returns it in lower case."""
    parse = one_of(*names)
    return lambda value: str(parse(value.lower() if isinstance(value, str) else value))


def compression(value: Any) -> str:
    """Parse the name of a compression codec; None means `none`."""
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    return "none" if value is None else str(one_of(*names)(value))


def share(value: Any) -> float:
    """Parse a number from 0.5 to 1."""
    try:
        share = float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number from 0.5 to 1") from None
    if not 0.5 <= share <= 1:
        raise ValueError("expected a number from 0.5 to 1")
    return share


def recovery(value: Any) -> str:
    """Parse `metadata.recovery.strategy`."""
    return str(one_of("none", "rebootstrap")(text(value).lower()))


def acks(value: Any) -> int:
    """Parse `acks`; return -1 for `all`."""
    found = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(str(value))
    if found is None or isinstance(value, bool):
        raise ValueError("expected all, -1, 0 or 1")
    return found


def addresses(value: Any) -> tuple[tuple[str, int], ...]:
    """Parse bootstrap addresses, given as one string or as a list of strings."""
    if isinstance(value, str):
        return tuple(parse_bootstrap(value))
    if not isinstance(value, Sequence) or not all(isinstance(part, str) for part in value):
        raise ValueError("expected HOST:PORT,HOST:PORT or a list of HOST:PORT")
    return tuple(parse_bootstrap(",".join(value)))


def offset_reset(value: Any) -> str:
    """Parse `auto.offset.reset`. A duration has the form of ISO 8601."""
    given = text(value)
    if given in ("earliest", "latest", "none"):
        return given
    if re.fullmatch(
        r"by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", given, re.IGNORECASE
    ):
        return given
    raise ValueError("expected earliest, latest, none or by_duration:PnDTnHnMn.nS")


def assignors(value: Any) -> tuple[Any, ...]:
    """Parse assignor names separated by commas, or accept a list of names and assignor objects."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError("expected names of assignors, or assignors")
    return tuple(part.strip() if isinstance(part, str) else part for part in parts)


def callable_or_none(value: Any) -> Any:
    """Accept a callable or None, and return it."""
    if value is not None and not callable(value):
        raise ValueError("expected a callable or None")
    return value


def partitioner(value: Any) -> Any:
    """Accept a callable or None. For a class name that ends in RoundRobinPartitioner, return that partitioner."""
    if isinstance(value, str) and value.rpartition(".")[2] == "RoundRobinPartitioner":
        return "RoundRobinPartitioner"
    if value is None or callable(value):
        return value
    raise ValueError("expected a callable, RoundRobinPartitioner or None")


def _encode(text: Any) -> bytes | None:
    return None if text is None else str(text).encode()


def _decode(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode()


def serializer(value: Any) -> Any:
    """Accept a callable or None. For the name of one of Kafka's serializers, return the equivalent function."""
    if isinstance(value, str):
        value = _named(value, {"ByteArraySerializer": None, "StringSerializer": _encode})
    return callable_or_none(value)


def deserializer(value: Any) -> Any:
    """Accept a callable or None. For the name of one of Kafka's deserializers, return the equivalent function."""
    if isinstance(value, str):
        value = _named(value, {"ByteArrayDeserializer": None, "StringDeserializer": _decode})
    return callable_or_none(value)


def _named(value: str, known: dict[str, Any]) -> Any:
    name = value.rpartition(".")[2]
    if name not in known:
        raise ValueError(f"expected a callable, None, or one of {', '.join(known)}")
    return known[name]


def protocol(value: Any) -> str:
    """Parse `security.protocol`."""
    given = text(value).upper()
    if given not in PROTOCOLS:
        raise ValueError(f"expected one of {', '.join(PROTOCOLS)}")
    return given


def mechanism(value: Any) -> str:
    """Parse the name of a SASL mechanism; None means Kafka's default."""
    return "GSSAPI" if value is None else text(value)


def upper(value: Any) -> str:
    """Accept a string, and return it in upper case."""
    return text(value).upper()


def texts(value: Any) -> tuple[str, ...]:
    """Parse strings separated by commas, or accept a list of strings."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(text(part).strip() for part in parts or () if part)


AT_LEAST_0 = integer(0, INT_MAX)
AT_LEAST_1 = integer(1, INT_MAX)
LONG = integer(0, _LONG_MAX)
ANY_LONG = integer(-_LONG_MAX - 1, _LONG_MAX)


def timeout_or_none(value: Any) -> int | None:
    """Parse a number of milliseconds; None and infinity mean no limit."""
    return None if value is None or value == float("inf") else int(LONG(value))
