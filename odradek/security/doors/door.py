"""Doors in general: the check before a request handler that refuses parts of a request without rights, at once
or in a worker. It removes the parts of a request for which the client has no right, and answers these parts
with errors.

Theory of operation
-------------------
Handlers do not check rights. With an authorizer, the API table has a `GuardedHandler` for each handler. Otherwise it
has the handlers themselves, without any cost. A door gets a request and returns one of these:

* None: the handler gets the request unchanged.
* A response, or `CLOSE`: the request is refused as a whole.
* `Admitted`: the handler gets the rest of the request, and `merge` adds the refusals to its answer.

**The client has the rights for everything that the handler gets, in any image.** A door uses a committed image, and
the handler may use a newer one. A decision even uses topics that are not committed yet. So a door checks names. It
turns an id into the topic's name, which never changes. If the door does not find a topic, it answers with an error
itself.

**A parked request is checked again.** If an ACL has changed between the door and the answer, `again` checks the
answer before it is sent.

**Many decisions are made in a worker**: decisions about thousands of names, and decisions about all topics.
Their number is computed before the door is called (`counting`).

**A refusal is reported to the audit log** when the door has decided. `would` reports nothing. It is used by
`merge` to hide parts of an answer, and by doors for which another right would also suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Never, Protocol, TypeAlias

import attrs

from odradek.security.acls.authorizer import Authorizer, Rights
from odradek.security.acls.rules import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from odradek.serving.contract import ClientRights, Context, Delayed, Handler, Outcome, Result, Suspend
from odradek.serving.long_work import LongWork, Share
from odradek.wire.api_keys import ApiKey
from odradek.wire.structure import Message

__all__ = [
    "PASSES",
    "Admitted",
    "Again",
    "Asked",
    "Door",
    "GuardedHandler",
    "Topic",
    "Topics",
    "Verdict",
    "check_doors",
    "may_on_cluster",
    "operations_of",
    "rights_of",
]


class Topic(Protocol):
    """The attributes of a topic that doors use."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> Container[int]: ...


class Topics(Protocol):
    """The attributes of a metadata image that doors use."""

    @property
    def topics(self) -> Mapping[str, Topic]: ...

    @property
    def topics_by_id(self) -> Mapping[bytes, Topic]: ...


class Asked:
    """The client of a request, the request's version, and the topics of the cluster. It is made for each request, so
    it must be cheap.
    """

    __slots__ = ("rights", "topics", "version")

    def __init__(self, rights: ClientRights, version: int, topics: Topics) -> None:
        self.rights = rights
        self.version = version
        self.topics = topics

    def name_of(self, topic_id: bytes) -> str | None:
        """Find the name of a topic by its id; None if there is no such topic."""
        topic = self.topics.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def may(self, operation: Operation, name: str) -> bool:
        """True if the client may perform the operation on a topic."""
        return self.rights.allows(operation, ResourceType.TOPIC, name)

    def would(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """True if the client may perform the operation on the resource. Unlike `may`, it reports no refusals
        to the audit log.
        """
        return self.rights.would_allow(operation, resource_type, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """True if the client may perform the operation on a group."""
        return self.rights.allows(operation, ResourceType.GROUP, name)

    def may_transact(self, operation: Operation, name: str) -> bool:
        """True if the client may perform the operation on a transactional id."""
        return self.rights.allows(operation, ResourceType.TRANSACTIONAL_ID, name)

    def may_cluster(self, operation: Operation) -> bool:
        """True if the client may perform the operation on the cluster."""
        return self.rights.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)


@attrs.frozen(slots=True)
class Admitted:
    """The admitted part of a request, and the function that makes the whole answer from the answer to that part."""

    request: Any
    merge: Callable[[Any], Any]


Verdict: TypeAlias = Admitted | Message | Outcome | None
"""The result of a door; see the theory of operation above."""
Door: TypeAlias = Callable[[Asked, Never], Verdict]
"""A function that checks requests of one API. (`Never` stands for the request type of that API.)"""
Count: TypeAlias = Callable[[Asked, Never], int]
"""A function that returns the maximum number of decisions that a door makes for a request."""
DECISIONS_AT_ONCE = 1_000
"""The maximum number of decisions about rights (about 3 ms) that the event loop makes for one request; a
worker makes more.
"""
Again: TypeAlias = Callable[[Asked, Never], Message]
"""A function that checks the response to a request that had to wait. It returns this response, or another one."""


def PASSES(asked: Asked, request: Any) -> None:  # noqa: N802  # the name appears in tables of doors
    """Let in every request."""
    return None


def check_doors(served: Iterable[int], doors: Collection[int], table: str) -> None:
    """Raise `AssertionError` if a served API has no door; the message names the `table` that lacks it.

    Every node checks this at its start, even if it has no authorizer. So a new API has a door from its first day on.
    """
    missing = [ApiKey(key).name for key in sorted(served) if key not in doors]
    if missing:
        raise AssertionError(
            f"no check of rights is entered for {', '.join(missing)}: enter one in {table}, as "
            'docs/contributing.md says under "Add an API"'
        )


def may_on_cluster(rights: ClientRights, operation: Operation) -> bool:
    """True if the client may perform the operation on the cluster."""
    return rights.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def operations_of(rights: ClientRights, resource_type: ResourceType, name: str) -> int:
    """Return the operations that the client may do on a resource, as a bit field (KIP-430)."""
    return sum(
        1 << code for code in SUPPORTED[resource_type] if rights.would_allow(code, resource_type, name)
    )


def rights_of(context: Context, authorizer: Authorizer) -> ClientRights:
    """Return the rights of a connection's client. If the client's principal has changed, make new rights."""
    rights = context.rights
    if rights is None or rights.principal != context.principal:
        rights = context.rights = Rights(
            authorizer, context.principal, context.client_address, listener=context.listener
        )
    return rights


class GuardedHandler:
    """A request handler with its door: the check of the client's rights."""

    __slots__ = (
        "_after_work",
        "_again",
        "_api_key",
        "_authorizer",
        "_decisions",
        "_door",
        "_handle",
        "_long_work",
        "_topics",
    )

    def __init__(
        self,
        handle: Handler,
        door: Door,
        authorizer: Authorizer,
        topics: Callable[[], Topics],
        again: Again | None = None,
        *,
        long_work: LongWork | None = None,
        after_work: Callable[[], None] | None = None,
        api_key: int = -1,
    ) -> None:
        """`long_work` runs requests of thousands of elements. `after_work` is called after such a request was
        handled. `api_key` is for the audit log. `again` checks answers of parked requests.
        """
        self._handle = handle
        self._door = door
        self._authorizer = authorizer
        self._topics = topics
        self._again = again
        self._long_work = long_work
        self._after_work = after_work
        self._api_key = api_key
        self._decisions: Count | None = None

    def counting(self, decisions: Count | None) -> GuardedHandler:
        """Set the function that counts a request's decisions. A worker then checks requests with many decisions."""
        self._decisions = decisions
        return self

    def handle(self, context: Context, request: Any) -> Result:
        """Check the client's rights, and handle the admitted part of the request."""
        authorizer = self._authorizer
        rights = context.rights
        if rights is None or rights.principal != context.principal:
            rights = rights_of(context, authorizer)
        asked = Asked(rights, context.api_version, self._topics())
        if context.of_connection is not None and self._long_work is not None:
            # The request has thousands of elements, so it was decoded in a worker.
            return self._long(self._long_work, context, asked, request)
        count = self._decisions
        if count is not None and self._long_work is not None and count(asked, request) > DECISIONS_AT_ONCE:
            return self._long(self._long_work, context.for_later(), asked, request)
        admitted = self._door(asked, request)
        if admitted is None:
            result = self._handle(context, request)
            if self._again is None or not isinstance(result, Delayed | Suspend):
                return result
            return revised(result, self._judge_again(asked, None))
        rights.log_denials(self._api_key)
        if not isinstance(admitted, Admitted):
            return admitted
        result = self._handle(context, admitted.request)
        if isinstance(result, Delayed | Suspend) and self._again is not None:
            return revised(result, self._judge_again(asked, admitted.merge))
        return revised(result, admitted.merge)

    def _long(self, long_work: LongWork, context: Context, asked: Asked, request: Any) -> Suspend:
        share = long_work.begin()
        return Suspend(lambda: self._handle_long(share, context, asked, request), is_long=True)

    async def _handle_long(self, share: Share, context: Context, asked: Asked, request: Any) -> Any:
        """Check rights in a worker, then handle the request on the event loop, as long work. Until the
        request is handled, all decisions about it are remembered.
        """
        many = Asked(asked.rights.for_many(), asked.version, asked.topics)
        admitted = await share.in_worker(self._door, many, request)
        many.rights.log_denials(self._api_key)
        if admitted is not None and not isinstance(admitted, Admitted):
            return admitted
        merge: Callable[[Any], Any] | None = None if admitted is None else admitted.merge
        inner = request if admitted is None else admitted.request
        result = await share.on_loop(self._handle, context, inner)
        if self._after_work is not None:
            self._after_work()
        while isinstance(result, Suspend):
            result = await result.run()
        if isinstance(result, Delayed):
            if self._again is not None:
                return revised(result, self._judge_again(many, merge))
            return result if merge is None else revised(result, merge)
        return result if merge is None else await share.in_worker(merge, result)

    def _judge_again(self, asked: Asked, merge: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        generation, authorizer, again = self._authorizer.generation, self._authorizer, self._again
        assert again is not None

        def judge(response: Any) -> Any:
            if (
                not isinstance(response, Outcome)
                and response is not None
                and authorizer.generation != generation
            ):
                response = again(Asked(asked.rights, asked.version, self._topics()), response)
                asked.rights.log_denials(self._api_key)
            return response if merge is None else merge(response)

        return judge


def revised(result: Result, merge: Callable[[Any], Any]) -> Result:
    """Change a result's response by `merge`: now, or when the response is complete."""
    if isinstance(result, Delayed):
        result.revise_by(merge)
        return result
    if isinstance(result, Suspend):
        return attrs.evolve(result, run=_and_then(result, merge))
    changed: Result = merge(result)
    return changed


def _and_then(suspend: Suspend, merge: Callable[[Any], Any]) -> Callable[[], Any]:
    async def run() -> Any:
        result = await suspend.run()
        # The work may return another result that is not complete yet.
        return revised(result, merge)

    return run


def split(items: Iterable[Any], is_allowed: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Split items into allowed items and refused items."""
    allowed: list[Any] = []
    refused: list[Any] = []
    for item in items:
        (allowed if is_allowed(item) else refused).append(item)
    return allowed, refused
