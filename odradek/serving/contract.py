"""The contract between the connection loop and the request handlers.

`handle(context, request) -> Response | Delayed | Suspend | None | CLOSE`

* A **response** message answers at once.
* `Delayed` answers later. Meanwhile later frames of the same connection are dispatched (Kafka mutes the connection
  instead). Answers leave in the order of their requests.
* `Suspend` is off-loop or administrative work, or a request of many turns. Until it is done, no further request of
  this connection is dispatched.
* `None` is no answer at all: a Produce with acks=0.
* `CLOSE` ends the connection: only so can a Produce with acks=0 show its error.

The receive buffer is shared between all connections. A handler copies what it keeps beyond its return: a parked
request, a name, a batch. Of a decoded request, `records` alone is a view of that buffer.
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
"""Name and version of a library that has not said what it is."""


class Login(Protocol):
    """The SASL login of a connection, as far as requests can renew it (KIP-368)."""

    refusal_delay_seconds: float
    """The delay before a refusal is answered (`connection.failed.authentication.delay.ms`)."""

    @property
    def expires(self) -> bool:
        """True if the login expires at some time."""

    @property
    def by_token(self) -> bool:
        """True if the client has shown a delegation token."""

    @property
    def is_refused(self) -> bool:
        """True if the last renewal has failed."""

    @property
    def refusal(self) -> str:
        """The reason to close the connection now, before its next request; empty if it stays open."""

    def handshake(self, request: Any, version: int) -> Any: ...

    def authenticate(self, request: Any) -> Any: ...


class Answer(Protocol):
    """The receiver of a delayed response: the connection's slot for it."""

    def complete(self, response: Any, /) -> None: ...


@attrs.frozen(slots=True, eq=False)
class Receiver:
    """A receiver of a response within this process."""

    complete: Callable[[Any], None]


class Delayed:
    """A request that waits for something. The owner calls `complete` once; the connection may call `abandon`.

    The connection sets `answer` when it queues the request. A handler may complete before that: the response is
    then kept until the connection asks.
    """

    __slots__ = ("_revise", "answer", "response")

    parks: ClassVar[bool] = False
    """True if it may wait long, as a Fetch does: a connection may have only a few of these at once."""
    keeps_request: ClassVar[bool] = True
    """True if the delayed answer keeps its request, or about as many bytes, until it is sent."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.response: Any = None
        self._revise: Callable[[Any], Any] | None = None

    def revise_by(self, revise: Callable[[Any], Any]) -> None:
        """Change the response, now or when it comes. Each caller up to the connection may do so, one after the other."""
        if self.response is not None:
            self.response = revise(self.response)
        elif (before := self._revise) is None:
            self._revise = revise
        else:
            self._revise = lambda response: revise(before(response))

    def complete(self, response: Any) -> None:
        """Give the answer. Calling it twice is a bug of the caller."""
        if self.response is not None:
            raise AssertionError("a delayed request was completed twice")
        if self._revise is not None:
            response = self._revise(response)
        self.response = response
        if self.answer is not None:
            self.answer.complete(response)

    def abandon(self) -> None:
        """Called when the connection is lost: stop waiting, release all resources."""


@attrs.frozen(slots=True)
class Suspend:
    """Work that awaits. `run` gives the response; `ConnectionLost` and cancellation end the connection."""

    run: Callable[[], Awaitable[Any]]
    is_long: bool = False
    """True if the answer may be so large that a worker encodes it."""


class Outcome(Enum):
    """Answers that are not messages."""

    CLOSE = "close"


CLOSE = Outcome.CLOSE


class PinsFiles(ABC):
    """A response that holds ranges of files: they stay pinned until it is sent, or until `release_files`."""

    __slots__ = ()

    @abstractmethod
    def release_files(self) -> None:
        """Unpin them: the response will never be sent."""


Result: TypeAlias = "Message | Delayed | Suspend | Outcome | None"
"""A response message, `Delayed`, `Suspend`, None or `CLOSE`."""


class ClientRights(Protocol):
    """The decisions about a single client's rights, by Kafka's numbers of operations and resource types."""

    @property
    def principal(self) -> str: ...

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        """True if the client may do this to the resource. A refusal is recorded for the audit log."""

    def would_allow(self, operation: int, resource_type: int, name: str) -> bool:
        """True if the client may do this to the resource, for a caller that refuses nothing."""

    def allows_any(self, operation: int, resource_type: int) -> bool:
        """True if the client may do this to some resource of the type. A refusal is recorded for the audit log."""

    def remembered(self) -> Mapping[tuple[int, int, str | None], bool]:
        """Return the decisions that hold now, by operation, resource type and name."""

    def log_denials(self, api_key: int) -> None:
        """Give the refusals of a request to the audit log."""

    def for_many(self) -> ClientRights:
        """Make a copy that remembers everything, for one request that names very many things."""


class ClientQuota(Protocol):
    """The accounts that one client is charged to, as far as handlers need them."""

    @property
    def fetch_bytes_max(self) -> int | None:
        """The most bytes of one fetch; None if no quota applies."""


class Context:
    """The client that asks, and its connection. There is one per connection; `client_id` and `api_version` are
    those of the current request.

    A handler that outlives its dispatch takes a copy (`for_later`).
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
        """The client's rights, which remember decisions; None without an authorizer."""
        self.login: Login | None = None
        """The SASL login of the connection; None where the listener has none."""
        self.quota: ClientQuota | None = None
        """The accounts that the client is charged to; None while there are no quotas at all."""
        self.throttle_ms = 0
        """The time for which the client of the current request has to wait, in milliseconds."""
        self.client_id: str | None = None
        self.software = UNKNOWN_SOFTWARE
        """Name and version of the client's library, as it says in ApiVersions (KIP-511)."""
        self.on_end: Callable[[], None] | None = None
        """Called when the connection has ended."""
        self.api_version = 0
        self.number = 0
        """The number of the current request: requests are counted as they are dispatched."""
        self.appended = 0
        """The number of the connection's last request that appended records."""
        self.of_connection: Context | None = None
        """The connection's own context, in a copy of it."""

    def for_later(self) -> Context:
        """Copy the facts of the current request, for a handler that goes on with it after its dispatch."""
        later = copy(self)
        later.of_connection = self.own
        return later

    @property
    def own(self) -> Context:
        """The connection's own context, also in a copy of it."""
        return self if self.of_connection is None else self.of_connection

    def note_append(self) -> Context:
        """Record that the current request is about to append. Assert that its connection appends in the order of its
        requests, even when some are parked, suspended or handled beside the loop. Returns the connection's own
        context."""
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
        """True if the client is authenticated, and not by a delegation token (KIP-48)."""
        if self.login is not None:
            return not self.login.by_token
        return self.principal != ANONYMOUS

    def authorize(self, operation: int, resource_type: int, resource: str) -> bool:
        """True if the principal may do this, by Kafka's numbers; always true without an authorizer."""
        return self.rights is None or self.rights.allows(operation, resource_type, resource)


Handler: TypeAlias = Callable[[Context, Never], Result]
"""Handles the requests of its own API and of no other (`Never`); the API table pairs API and handler."""
