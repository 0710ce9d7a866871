"""A client of a schema registry that speaks Confluent's protocol (Karapace, Apicurio and others). SHELL.

The registry may hang, or answer garbage. So each look-up has one deadline for the whole exchange, and a limit
of bytes. After a failure, the registry is left alone for some seconds, and views go on.
Records may name many ids that do not exist, so refusals are remembered, too.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections import OrderedDict
from urllib.parse import quote, urlsplit

import attrs
import h11

from odradek.console.decoding.decoded import DecodingError, Json

__all__ = ["RegisteredSchema", "Registry", "RegistrySettings"]

ANSWER_BYTES_MAX = 1 << 20
ANSWER_SECONDS_MAX = 3.0
REST_SECONDS = 10.0
"""The time after a failure in which the registry is not asked."""
MISSING_SECONDS = 30.0
"""The time for which it is remembered that the registry lacks a schema."""
SCHEMAS_MAX = 500
"""The most answers that are remembered."""
_REFERENCES_MAX = 32
_RECEIVE_BYTES = 64 * 1024


@attrs.frozen
class RegistrySettings:
    """Where the registry is, and how to speak with it."""

    url: str
    user_info: str | None = attrs.field(default=None, repr=False)
    """`user:password` of basic authentication."""
    truststore: str | None = None
    """A PEM file with the authorities that the registry's certificate may come from; None: those of the system."""


@attrs.frozen
class RegisteredSchema:
    """A schema of the registry."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """(name, text) of each schema that it uses, directly or not. A schema comes before those that use it."""


class _Down(DecodingError):
    """The registry has not answered, or not with what a registry answers."""


class _Missing(DecodingError):
    """The registry does not have this."""


class Registry:
    """Looks schemas up, and remembers them. Its methods may be called from any thread."""

    def __init__(self, settings: RegistrySettings) -> None:
        """Make a client; it opens no connection yet. Raises `ValueError` for a bad address."""
        parts = urlsplit(settings.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"{settings.url!r} is no address of a schema registry: expected http://HOST:PORT"
            )
        self._host, self._path = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (
            ssl.create_default_context(cafile=settings.truststore) if parts.scheme == "https" else None
        )
        self._headers = [("Host", parts.netloc.rpartition("@")[2]), ("Accept", "application/json")]
        if settings.user_info is not None:
            self._headers.append(
                ("Authorization", f"Basic {b64encode(settings.user_info.encode()).decode()}")
            )
        self._lock = threading.Lock()
        self._known: OrderedDict[int, RegisteredSchema | tuple[float, str]] = OrderedDict()
        self._rests_until = 0.0
        self._failure = ""
        self._counts = {"asked": 0, "failed": 0}

    def statistics(self) -> dict[str, int]:
        """Return counters by name: look-ups at the registry, those that failed, and remembered answers."""
        with self._lock:
            return {**self._counts, "known": len(self._known)}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return a schema with all that it uses. Raises `DecodingError` with the reason.

        Only one thread asks at a time. The others wait for it, for at most the time of its look-ups.
        """
        with self._lock:
            known = self._known.get(schema_id)
            if isinstance(known, RegisteredSchema):
                self._known.move_to_end(schema_id)
                return known
            now = time.monotonic()
            if known is not None and now < known[0]:
                raise DecodingError(known[1])
            if now < self._rests_until:
                raise DecodingError(self._failure)
            deadline = now + ANSWER_SECONDS_MAX
            try:
                found = self._look_up(schema_id, deadline)
            except _Down as error:
                self._counts["failed"] += 1
                self._rests_until = time.monotonic() + REST_SECONDS
                self._failure = str(error)
                raise
            except DecodingError as error:
                self._keep(schema_id, (time.monotonic() + MISSING_SECONDS, str(error)))
                raise
            self._keep(schema_id, found)
            return found

    def _keep(self, schema_id: int, found: RegisteredSchema | tuple[float, str]) -> None:
        self._known[schema_id] = found
        self._known.move_to_end(schema_id)
        if len(self._known) > SCHEMAS_MAX:
            self._known.popitem(last=False)

    def _look_up(self, schema_id: int, deadline: float) -> RegisteredSchema:
        answer = self._ask(f"/schemas/ids/{schema_id}", deadline)
        references: dict[str, str] = {}
        self._collect(answer, references, deadline, 0)
        return RegisteredSchema(_kind_of(answer), _text_of(answer), tuple(references.items()))

    def _collect(self, answer: dict[str, Json], found: dict[str, str], deadline: float, depth: int) -> None:
        """Look up the references of a schema, and add each after those that it uses itself."""
        listed = answer.get("references") or []
        if not isinstance(listed, list) or depth > _REFERENCES_MAX:
            raise DecodingError("the registry's schema has references that cannot be read")
        for each in listed:
            name, subject, version = _reference(each)
            if name in found:
                continue
            if len(found) >= _REFERENCES_MAX:
                raise DecodingError(f"the registry's schema has more than {_REFERENCES_MAX} references")
            used = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}", deadline)
            self._collect(used, found, deadline, depth + 1)
            found[name] = _text_of(used)

    def _ask(self, path: str, deadline: float) -> dict[str, Json]:
        self._counts["asked"] += 1
        try:
            status, body = self._exchange(path, deadline)
        except (OSError, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            reason = "it took too long" if isinstance(error, TimeoutError) else str(error) or "no answer"
            raise _Down(
                f"the schema registry at {self._host}:{self._port} cannot be read: {reason}"
            ) from None
        if status == 404:
            raise _Missing(f"the schema registry does not have {path}")
        if status != 200:
            raise _Down(f"the schema registry answers {path} with the status {status}")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise _Down(f"the schema registry answers {path} with something that is no JSON") from None
        if not isinstance(document, dict):
            raise _Down(f"the schema registry answers {path} with something that is no schema")
        return document

    def _exchange(self, path: str, deadline: float) -> tuple[int, bytes]:
        """Do one exchange of HTTP. Raises `OSError`, and h11's errors."""
        machine = h11.Connection(h11.CLIENT)
        with socket.create_connection((self._host, self._port), timeout=_left(deadline)) as plain:
            plain.settimeout(_left(deadline))
            stream = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self._host)
            with stream:
                request = h11.Request(
                    method="GET", target=self._path + path, headers=[*self._headers, ("Connection", "close")]
                )
                stream.sendall((machine.send(request) or b"") + (machine.send(h11.EndOfMessage()) or b""))
                return _response(stream, machine, deadline)


def _response(stream: socket.socket, machine: h11.Connection, deadline: float) -> tuple[int, bytes]:
    status, body = 0, bytearray()
    while True:
        event = machine.next_event()
        if event is h11.NEED_DATA:
            stream.settimeout(_left(deadline))
            machine.receive_data(stream.recv(_RECEIVE_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > ANSWER_BYTES_MAX:
                raise OSError(f"its answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status, bytes(body)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _kind_of(answer: dict[str, Json]) -> str:
    kind = answer.get("schemaType") or "AVRO"
    if not isinstance(kind, str):
        raise DecodingError("the registry's schema has a type that is no text")
    return kind.upper()


def _text_of(answer: dict[str, Json]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise DecodingError("the registry's answer has no schema")
    return text


def _reference(each: Json) -> tuple[str, str, int]:
    if isinstance(each, dict):
        name, subject, version = each.get("name"), each.get("subject"), each.get("version")
        if isinstance(name, str) and isinstance(subject, str) and isinstance(version, int):
            return name, subject, version
    raise DecodingError("the registry's schema has a reference that cannot be read")
