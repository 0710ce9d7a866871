"""A client of a schema registry that speaks Confluent's protocol (Karapace, Apicurio and others). SHELL.

The registry may hang, or answer garbage. So each look-up has one deadline for the whole exchange, and a limit
of bytes. After a failure, the registry is left alone for some seconds, and views go on.
Records may name many ids that do not exist, so refusals are remembered, too, and look-ups have a limit per second. No
thread waits for the look-up of another id.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections import OrderedDict
from typing import TypeVar
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
REFUSED_MAX = 5000
"""The most ids of which it is remembered that the registry lacks or refuses them."""
LOOK_UPS_PER_SECOND = 20
LOOK_UPS_AT_ONCE = 100
"""The most look-ups after a time without any."""
_DOWN = frozenset({401, 407, 408, 429})
"""The statuses of HTTP from 400 to 499 that say something about the registry, not about a schema."""
_REFERENCES_MAX = 32
_RECEIVE_BYTES = 64 * 1024
_T = TypeVar("_T")


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
    """The registry does not have this, refuses it, or has too much of it."""


@attrs.define(eq=False)
class _Asking:
    """The lock of the thread that asks for an id, and the number of threads that hold it or wait for it."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    threads: int = 0


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
        self._known: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._refused: OrderedDict[int, tuple[float, str]] = OrderedDict()
        """Until when an id is not asked for again, and the reason. Ids of hostile records drive out no schema."""
        self._asking: dict[int, _Asking] = {}
        self._turns = float(LOOK_UPS_AT_ONCE)
        self._turns_at = time.monotonic()
        self._rests_until = 0.0
        self._failure = ""
        self._counts = {"asked": 0, "failed": 0}

    def statistics(self) -> dict[str, int]:
        """Return counters by name: requests to the registry, failures, remembered answers, and refusals."""
        with self._lock:
            return {**self._counts, "known": len(self._known), "refused": len(self._refused)}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return a schema with all that it uses. Raises `DecodingError` with the reason.

        One thread asks for an id. Others that want it wait, for at most the time of its look-ups.
        """
        with self._lock:
            found = self._remembered(schema_id)
            if found is not None:
                return found
            slot = self._asking.setdefault(schema_id, _Asking())
            slot.threads += 1
        try:
            if not slot.lock.acquire(timeout=ANSWER_SECONDS_MAX):
                raise DecodingError("the schema registry is being asked for this schema")
            try:
                return self._asked(schema_id)
            finally:
                slot.lock.release()
        finally:
            with self._lock:
                slot.threads -= 1
                if slot.threads == 0:
                    del self._asking[schema_id]

    def _remembered(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema if it is known. Raises `DecodingError` if it is known that it cannot be had now."""
        found = self._known.get(schema_id)
        if found is not None:
            self._known.move_to_end(schema_id)
            return found
        now = time.monotonic()
        until, reason = self._refused.get(schema_id, (0.0, ""))
        if now < until:
            raise DecodingError(reason)
        if now < self._rests_until:
            raise DecodingError(self._failure)
        return None

    def _asked(self, schema_id: int) -> RegisteredSchema:
        """Ask the registry, unless another thread has done so meanwhile. No lock of all threads is held."""
        with self._lock:
            found = self._remembered(schema_id)
            if found is not None:
                return found
            self._take_turn()
        try:
            found = self._look_up(schema_id, time.monotonic() + ANSWER_SECONDS_MAX)
        except _Down as error:
            with self._lock:
                self._counts["failed"] += 1
                self._rests_until = time.monotonic() + REST_SECONDS
                self._failure = str(error)
            raise
        except DecodingError as error:
            with self._lock:
                _keep(self._refused, schema_id, (time.monotonic() + MISSING_SECONDS, str(error)), REFUSED_MAX)
            raise
        with self._lock:
            _keep(self._known, schema_id, found, SCHEMAS_MAX)
        return found

    def _take_turn(self) -> None:
        """Count a look-up. Raises `DecodingError` if there were too many in a short time."""
        now = time.monotonic()
        self._turns = min(LOOK_UPS_AT_ONCE, self._turns + (now - self._turns_at) * LOOK_UPS_PER_SECOND)
        self._turns_at = now
        if self._turns < 1:
            raise DecodingError(
                f"the schema registry is asked for at most {LOOK_UPS_PER_SECOND} schemas a second: try again"
            )
        self._turns -= 1

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
        with self._lock:
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
        if 400 <= status < 500 and status not in _DOWN:
            raise _Missing(f"the schema registry refuses {path} with the status {status}")
        if status != 200:
            raise _Down(f"the schema registry answers {path} with the status {status}")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise _Down(f"the schema registry answers {path} with something that is no JSON") from None
        if not isinstance(document, dict):
            raise _Down(f"the schema registry answers {path} with something that is no schema")
        return document

    def _connected(self, deadline: float) -> socket.socket:
        """Connect to the first address that accepts. All of them share the deadline. Raises `OSError`."""
        failure = OSError("its name has no address")
        for family, kind, number, _, address in socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        ):
            plain = socket.socket(family, kind, number)
            try:
                plain.settimeout(_left(deadline))
                plain.connect(address)
            except OSError as error:
                plain.close()
                failure = error
            else:
                return plain
        raise failure

    def _exchange(self, path: str, deadline: float) -> tuple[int, bytes]:
        """Do one exchange of HTTP. Raises `OSError`, and h11's errors."""
        machine = h11.Connection(h11.CLIENT)
        with self._connected(deadline) as plain:
            plain.settimeout(_left(deadline))
            stream = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self._host)
            with stream:
                request = h11.Request(
                    method="GET", target=self._path + path, headers=[*self._headers, ("Connection", "close")]
                )
                stream.settimeout(_left(deadline))
                stream.sendall((machine.send(request) or b"") + (machine.send(h11.EndOfMessage()) or b""))
                return _response(stream, machine, deadline)


def _keep(kept: OrderedDict[int, _T], schema_id: int, found: _T, most: int) -> None:
    kept[schema_id] = found
    kept.move_to_end(schema_id)
    if len(kept) > most:
        kept.popitem(last=False)


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
                raise _Missing(f"the schema registry's answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
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
