"""Protocol errors: some are sent to a peer as a code, others close the connection.

`KafkaError` carries one of Kafka's error codes and becomes part of a response. `ProtocolError` means that bytes and
protocol do not fit. `RemoteProtocolError`: the peer is at fault, and the connection is closed. `LocalProtocolError`:
our own code asked for something impossible (a bug).
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
    """Bytes and protocol do not fit."""


class LocalProtocolError(ProtocolError):
    """Our own code broke the protocol's rules: a value outside its field, a version that does not exist."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol's rules; its connection cannot be used further."""


class MalformedMessage(RemoteProtocolError):
    """Bytes that are no encoding of the message they claim to be."""


class TooManyElements(MalformedMessage):
    """More array elements than the decoder may make."""


MESSAGE_CHARACTERS_MAX = 4000


def listed(names: Iterable[str], separator: str = ", ") -> str:
    """Join names for the text of an error, and stop once they exceed its length."""
    some, left = list[str](), MESSAGE_CHARACTERS_MAX
    for name in names:
        some.append(name)
        left -= len(name) + len(separator)
        if left < 0:
            break
    return separator.join(some)


class KafkaError(Exception):
    """An outcome that has one of Kafka's error codes. `message` is Kafka's text, unless another was given.

    Texts repeat what a client wrote, and an answer holds no string of more than 32,767 bytes: longer ones are cut.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        text = self.code.message if message is None else message
        self.message = text if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX] + "..."
        super().__init__(f"{self.code.name}: {self.message}" if self.message else self.code.name)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle would call the class with `args`, but subclasses take other arguments.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(cls: type[KafkaError], args: tuple[Any, ...], state: dict[str, Any]) -> KafkaError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error
