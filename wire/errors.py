"""Defines the protocol errors: some are sent to the peer as a code, others close the connection.

A `KafkaError` has one of Kafka's error codes, and becomes part of a response. A `ProtocolError` means that
bytes do not fit the protocol. If the peer is at fault, it is a `RemoteProtocolError`, and the connection is
closed. A `LocalProtocolError` means that this program tried something impossible (a bug).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from odradek.wire.error_codes import ErrorCode

__all__ = [
    "ErrorCode",
    "KafkaError",
    "LocalProtocolError",
    "MalformedMessage",
    "ProtocolError",
    "RemoteProtocolError",
    "TooManyElements",
    "listed",
]


class ProtocolError(Exception):
    """Raised if bytes do not fit the protocol."""


class LocalProtocolError(ProtocolError):
    """Raised if this program broke the protocol's rules: a value outside its field, a version that does not exist."""


class RemoteProtocolError(ProtocolError):
    """Raised if the peer broke the protocol's rules; its connection cannot be used further."""


class MalformedMessage(RemoteProtocolError):
    """Raised for bytes that are not an encoding of the expected message."""


class TooManyElements(MalformedMessage):
    """Raised for more array elements than the decoder may create."""


MESSAGE_CHARACTERS_MAX = 4000


def listed(names: Iterable[str], separator: str = ", ") -> str:
    """Join names for an error text. Stops when the text is as long as an error text may be."""
    some, left = list[str](), MESSAGE_CHARACTERS_MAX
    for name in names:
        some.append(name)
        left -= len(name) + len(separator)
        if left < 0:
            break
    return separator.join(some)


class KafkaError(Exception):
    """A failure that has one of Kafka's error codes. `message` is Kafka's text for the code, unless the
    caller passes another text.

    A text may quote a client's input, and a string in a response has at most 32,767 bytes, so longer texts
    are cut.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        text = self.code.message if message is None else message
        self.message = text if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX] + "..."
        super().__init__(f"{self.code.name}: {self.message}" if self.message else self.code.name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Let pickle use `_remade`. By default pickle would call the class with `self.args`, but subclasses
        # have other parameters.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(cls: type[KafkaError], args: tuple[Any, ...], state: dict[str, Any]) -> KafkaError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error
