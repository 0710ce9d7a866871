"""The contract between connections and request handlers: responses, delayed answers, suspended work, the
context and rights of a client.

`handle(context, request) -> Response | Delayed | Suspend | None | CLOSE`

* A **response** message answers at once.
* `Delayed` means that the answer comes later. Meanwhile, later frames of the same connection are dispatched (Kafka
  mutes the connection instead). Answers leave in the order of their requests.
* `Suspend` is work in a worker, administrative work, or long work. Until it is done, no further request of this
  connection is dispatched.
* `None` means no answer at all, after a Produce with acks=0.
* `CLOSE` ends the connection. A Produce with acks=0 can show an error only in this way.

The receive buffer is shared between all connections. A handler copies what it keeps beyond its return: a parked
request, a name, a batch. In a decoded request, only `records` is a view of that buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from enum import Enum
from typing import Any, ClassVar, Never, Protocol, TypeAlias

import attrs

from odradek.wire.structure import Message

ANONYMOUS = "User:ANONYMOUS"
"""The principal of clients that have not authenticated."""
UNKNOWN_SOFTWARE = ("unknown", "unknown")
"""The name and version of a client's library if the client has not sent them."""


class Login(Protocol):
    """The SASL login of a connection, as far as handlers need it: to answer requests about the login, and to
    renew the login (KIP-368).
    """

    refusal_delay_seconds: float
    """The seconds by which the answer to a refused login is delayed (`connection.failed.authentication.delay.ms`)."""

    @property
    def expires(self) -> bool:
        """True if the login expires at some time."""

    @property
    def by_token(self) -> bool:
        """True if the client has logged in by a delegation token."""

    @property
    def is_refused(self) -> bool:
        """True if the last renewal has failed."""

    @property
    def refusal(self) -> str:
        """The reason to close the connection before its next request is served; empty if it stays open."""

    def handshake(self, request: Any, version: int) -> Any: ...

    def authenticate(self, request: Any) -> Any: ...


class Answer(Protocol):
    """The receiver of a delayed response: the connection's slot for it."""

    def complete(self, response: Any, /) -> None: ...


@attrs.frozen(slots=True, eq=False)
class Receiver:
    """A receiver of a response that passes it to a function in this process."""

    complete: Callable[[Any], None]


class Delayed:
    """A request whose answer comes later. The handler's side calls `complete` once; the connection may call
    `abandon`.

    The connection sets `answer` when it queues the request. If the handler completes it before that, the response is
    kept for the connection.
    """

    __slots__ = ("_revise", "answer", "response")

    parks: ClassVar[bool] = False
    """True if the request may wait for long, as a Fetch does. A connection may have only a few such requests at once.
    """
    keeps_request: ClassVar[bool] = True
    """True if the request, or about as many bytes, stays in memory until the answer is sent."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.response: Any = None
        self._revise: Callable[[Any], Any] | None = None

    def revise_by(self, revise: Callable[[Any], Any]) -> None:
        """Have `revise` change the response, now or when it comes. After several calls, the functions are applied in
        the order of the calls.
        """
        if self.response is not None:
            self.response = revise(self.response)
        elif (before := self._revise) is None:
            self._revise = revise
        else:
            self._revise = lambda response: revise(before(response))

    def complete(self, response: Any) -> None:
        """Set the response, and pass it to the connection. A second call is a bug, and raises `AssertionError`."""
        if self.response is not None:
            raise AssertionError("a delayed request was completed twice")
        if self._revise is not None:
            response = self._revise(response)
        self.response = response
        if self.answer is not None:
            self.answer.complete(response)

    def abandon(self) -> None:
        """Called when the connection is lost: stops the wait and releases all resources."""


@attrs.frozen(slots=True)
class Suspend:
    """Work that awaits. `run` returns the response; if it raises `ConnectionLost` or is cancelled, the connection
    ends.
    """

    run: Callable[[], Awaitable[Any]]
    is_long: bool = False
    """True if the answer may be so large that a worker encodes it."""


class Outcome(Enum):
    """Results of a handler that are not messages."""

    CLOSE = "close"


CLOSE = Outcome.CLOSE


class PinsFiles(ABC):
    """A response with file ranges. The ranges stay pinned until the response is sent, or until
    `release_files` is called.
    """

    __slots__ = ()

    @abstractmethod
    def release_files(self) -> None:
        """Unpin the file ranges, because the response will never be sent."""


Result: TypeAlias = "Message | Delayed | Suspend | Outcome | None"
"""A response message, `Delayed`, `Suspend`, None or `CLOSE`."""


class ClientRights(Protocol):
    """Decides what one client may do, by Kafka's numbers of operations and resource types."""

    @property
    def principal(self) -> str: ...

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        """True if the client may perform the operation on the resource. A refusal is recorded for the audit
        log.
        """

    def would_allow(self, operation: int, resource_type: int, name: str) -> bool:
        """True if the client may perform the operation on the resource. Unlike `allows`, it records no
        refusals for the audit log.
        """

    def allows_any(self, operation: int, resource_type: int) -> bool:
        """True if the client may perform the operation on at least one resource of the type. A refusal is
        recorded for the audit log.
        """

    def remembered(self) -> Mapping[tuple[int, int, str | None], bool]:
        """Return the remembered decisions that are still valid, by operation, resource type and name."""

    def log_denials(self, api_key: int) -> None:
        """Report the recorded refusals of a request to the audit log."""

    def for_many(self) -> ClientRights:
        """Make a copy that remembers any number of decisions, for one request that names very many resources."""


class ClientQuota(Protocol):
    """The quota accounts of one client, as far as handlers need them."""

    @property
    def fetch_bytes_max(self) -> int | None:
        """The maximum number of bytes of one fetch; None if no quota applies."""


class Context:
    """The client of a request, and its connection. Each connection has one object; `client_id` and `api_version`
    belong to its current request.

    A handler that continues after the dispatch takes a copy (`for_later`).
    """

    __slots__ = (
        "api_version",
        "appended",
        "client_address",
        "client_id",
        "client_port",
        "listener",
        "login",
        "number",
        "of_connection",
        "on_end",
        "opened_seconds",
        "principal",
        "quota",
        "rights",
        "software",
        "throttle_ms",
    )

    def __init__(self, listener: str, client_address: str, client_port: int = 0) -> None:
        self.listener = listener
        self.client_address = client_address
        self.client_port = client_port
        self.principal = ANONYMOUS
        self.rights: ClientRights | None = None
        """The client's rights with remembered decisions; None without an authorizer."""
        self.login: Login | None = None
        """The SASL login of the connection; None if the listener has no SASL."""
        self.quota: ClientQuota | None = None
        """The quota accounts of the client; None while there are no quotas."""
        self.throttle_ms = 0
        """The milliseconds for which the client of the current request is throttled."""
        self.client_id: str | None = None
        self.software = UNKNOWN_SOFTWARE
        """Name and version of the client's library, from its ApiVersions request (KIP-511)."""
        self.on_end: Callable[[], None] | None = None
        """Called when the connection has ended."""
        self.opened_seconds = 0.0
        """When the connection was opened, in seconds of the monotonic clock."""
        self.api_version = 0
        self.number = 0
        """The number of the current request, in the order of dispatch on this connection."""
        self.appended = 0
        """The number of the last request of this connection that appended records."""
        self.of_connection: Context | None = None
        """The connection's own context if this object is a copy of it; otherwise None."""

    def for_later(self) -> Context:
        """Copy the context, for a handler that continues with the current request after its dispatch."""
        later = copy(self)
        later.of_connection = self.own
        return later

    @property
    def own(self) -> Context:
        """The connection's own context, of which this object may be a copy."""
        return self if self.of_connection is None else self.of_connection

    def note_append(self) -> Context:
        """Record that the current request is about to append, and return the connection's own context. Assert that a
        connection appends in the order of its requests, even if some are parked or suspended.
        """
        connection = self if self.of_connection is None else self.of_connection
        if self.number < connection.appended:
            raise AssertionError(
                f"request {self.number} of a connection appends records after its later request "
                f"{connection.appended}"
            )
        connection.appended = self.number
        return connection

    @property
    def may_ask_for_tokens(self) -> bool:
        """True if the client may make requests about delegation tokens: it is authenticated, but not by such a token
        (KIP-48).
        """
        if self.login is not None:
            return not self.login.by_token
        return self.principal != ANONYMOUS

    def authorize(self, operation: int, resource_type: int, resource: str) -> bool:
        """True if the client may perform the operation on the resource; both are given by Kafka's numbers.
        Always true without an authorizer.
        """
        return self.rights is None or self.rights.allows(operation, resource_type, resource)


Handler: TypeAlias = Callable[[Context, Never], Result]
"""A function that handles requests of one API. (`Never` stands for the request type of that API.)"""
