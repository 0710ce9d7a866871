"""Sends one call about many items to the brokers that answer for them, retries, and collects the outcomes. PURE.

Theory of operation
-------------------
An admin call lists items (topics, partitions, groups, configuration resources). A *route* finds the broker
that answers for each item. The items of one broker share a request. Every item gets its own outcome, a value
or an error. After a retriable error, an item is routed and sent again until the deadline. So if a leader or
coordinator has moved, the call needs another round, but succeeds. An error of a whole request is the error of
all its items.

An item that is refused with THROTTLING_QUOTA_EXCEEDED is tried again when the broker's throttle time is over
(KIP-599). If that time is after the deadline, the refusal is the outcome.

When a route finds that an item does not exist, the item gets a final error, because a retry would find the
same. The error UNKNOWN_TOPIC_OR_PARTITION is retried only if it comes from the broker that is the leader
according to metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import attrs

from odradek.client.core.known_cluster import Broker
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.errors import BrokerUnavailable, ClientError, broker_error, is_retriable
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = [
    "CallError",
    "Outcomes",
    "Route",
    "Routed",
    "any_broker",
    "deadline_of",
    "decided",
    "item_error",
    "reachable",
    "scatter",
    "this_broker",
    "to_coordinators",
    "to_leaders",
    "to_transaction_coordinators",
    "within_quota",
]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
CallError: TypeAlias = KafkaError | ClientError
Outcomes: TypeAlias = dict[K, V | CallError]
_GROUP_KEY = 0
_TRANSACTION_KEY = 1


@attrs.define
class Routed:
    """The outcome of a route: the items of each broker, by broker id (None: any broker). Items without a
    broker have an error. The errors in `missing` are final, those in `errors` retriable.
    """

    by_node: dict[int | None, list[Any]] = attrs.field(factory=dict)
    errors: dict[Any, CallError] = attrs.field(factory=dict)
    missing: dict[Any, CallError] = attrs.field(factory=dict)


Route: TypeAlias = "Callable[[ClientCore, Sequence[Any], float], Operation[Routed]]"
"""A function `route(core, items, deadline)` that finds the brokers of items. It is called at every attempt, with the
items that have no outcome yet.
"""


def scatter(
    core: ClientCore,
    items: Iterable[K],
    route: Route,
    request: Callable[[list[K], int], Any],
    take: Callable[[Any, list[K]], Iterable[tuple[K, V | CallError]]],
    *,
    deadline: float,
    versions: tuple[int, int | None] = (0, None),
    repeat_after_loss: bool = True,
) -> Operation[Outcomes[K, V]]:
    """Send requests until every item has an outcome; return the outcomes in the order of `items`.

    `request(items, timeout_ms)` makes the message for the items of one broker. `versions` has the lowest and
    the highest version to use; None as the highest means no limit. `take(response, items)` reads their
    outcomes; an item that the response lacks gets UNKNOWN_SERVER_ERROR. If `repeat_after_loss` is False, a request whose
    connection broke is not repeated. Raises only errors of `route`: `ClientError` if no broker is reachable.
    """
    wanted = list(dict.fromkeys(items))
    final_codes = set() if route is to_leaders else {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if not repeat_after_loss:
        final_codes.add(ErrorCode.REQUEST_TIMED_OUT)
    outcomes: dict[K, V | CallError] = {}
    pending = wanted
    attempt = 0
    ask = partial(core.call, deadline=deadline, version_min=versions[0], version_max=versions[1])
    while pending:
        routed = yield from route(core, pending, deadline)
        retry: dict[K, CallError] = dict(routed.errors)
        wake_at = 0.0
        outcomes.update(routed.missing)
        timeout_ms = max(1, int((deadline - core.now) * 1000))
        calls = [
            (ask(request(of_node, timeout_ms), node=node), of_node)
            for node, of_node in routed.by_node.items()
        ]
        if calls:
            yield Wait([call for call, _ in calls])
        for call, of_node in calls:
            if call.error is not None:
                error = _as_call_error(call.error)
                lost = not isinstance(error, BrokerUnavailable)
                again = is_retriable(error) and (repeat_after_loss or not lost)
                (retry if again else outcomes).update(dict.fromkeys(of_node, error))
                continue
            for item, outcome in _answered(take(call.response, of_node), of_node).items():
                if _may_change(outcome, final_codes):
                    retry[item] = outcome
                    wake_at = max(wake_at, _allowed_at(core, call.response, outcome))
                else:
                    outcomes[item] = outcome
        wake_at = max(wake_at, core.now + core.backoff(attempt))
        if retry and wake_at >= deadline:
            outcomes.update(retry)
            break
        pending = [item for item in pending if item in retry]
        attempt += 1
        if pending:
            yield Wait(until=wake_at)
    return {item: outcomes[item] for item in wanted}


def _may_change(outcome: object, final_codes: Collection[ErrorCode]) -> TypeGuard[KafkaError]:
    """True if another attempt may lead to a different outcome."""
    return isinstance(outcome, KafkaError) and outcome.code.retriable and outcome.code not in final_codes


def _allowed_at(core: ClientCore, response: Any, error: KafkaError) -> float:
    """Compute the time at which the item may be sent again: after the throttle time for a quota error, otherwise now."""
    if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return core.now
    throttle_ms: int = response.throttle_time_ms
    return core.now + throttle_ms / 1000


def within_quota(
    core: ClientCore,
    names: Iterable[str],
    ask: Callable[[set[str]], Operation[Any]],
    take: Callable[[Any], Iterable[tuple[str, KafkaError | None]]],
    deadline: float,
) -> Operation[None]:
    """Send a request about all names. If a quota refuses some names, send a request about these names after
    the throttle time (KIP-599).

    `ask` sends the request. `take` reads the response, stores the outcomes, and returns the error (or None) of each
    name. If the wait would end after the deadline, the refusal is the outcome. Raises the errors of `ask`.
    """
    attempt, pending = 0, set(names)
    while pending:
        response = yield from ask(pending)
        refused = {
            name: error
            for name, error in take(response)
            if error is not None and error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        }
        pending = pending & refused.keys()
        wake_at = core.now + core.backoff(attempt)
        for error in refused.values():
            wake_at = max(wake_at, _allowed_at(core, response, error))
        if wake_at >= deadline:
            return
        attempt += 1
        if pending:
            yield Wait(until=wake_at)


def _answered(outcomes: Iterable[tuple[K, V | CallError]], asked: Iterable[K]) -> dict[K, V | CallError]:
    """Return the outcomes of a response, with an error for each requested item that the response lacks."""
    answered = dict(outcomes)
    for item in asked:
        if item not in answered:
            answered[item] = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker's answer has no entry for {item}"
            )
    return answered


def _as_call_error(error: Exception) -> CallError:
    if not isinstance(error, KafkaError | ClientError):
        raise error
    return error


def deadline_of(core: ClientCore, timeout: float | None) -> float:
    """Compute the deadline of a call: `timeout` seconds from now, or `ClientConfig.api_timeout` for None."""
    return core.now + (core.config.api_timeout if timeout is None else timeout)


def item_error(number: int, text: str | None, subject: str) -> KafkaError | None:
    """Make the error for an item's error code in a response; None for code 0."""
    return None if number == 0 else broker_error(number, text, subject)


def decided(
    core: ClientCore,
    message: Callable[[int], Any],
    failure: Callable[[Any], KafkaError | None],
    deadline: float,
    *,
    repeat_after_loss: bool = True,
) -> Operation[Any]:
    """Send a request for the controller to any broker, which forwards it, and return the response.

    `message(timeout_ms)` makes the request. `failure(response)` returns the response's error or None; an error is
    raised. After a retriable error (NOT_CONTROLLER: the quorum has no leader just now) the request is sent again
    until the deadline. `repeat_after_loss` is as in `scatter`.
    """
    yield from reachable(core, deadline)
    attempt = 0
    while True:
        left = deadline - core.now
        response = yield from request(
            core, message(max(1, int(left * 1000))), timeout=left, repeat_after_loss=repeat_after_loss
        )
        error = failure(response)
        if error is None:
            return response
        wake_at = core.now + core.backoff(attempt)
        unsure = error.code is ErrorCode.REQUEST_TIMED_OUT and not repeat_after_loss
        if unsure or not is_retriable(error) or wake_at >= deadline:
            raise error
        attempt += 1
        yield Wait(until=wake_at)


# Routes


def any_broker(core: ClientCore, items: Sequence[Any], deadline: float) -> Operation[Routed]:
    """Route all items to any broker, which forwards them to the controller. Waits until a broker is reachable."""
    yield from reachable(core, deadline)
    return Routed({None: list(items)})


def reachable(core: ClientCore, deadline: float) -> Operation[None]:
    """Wait until some broker has answered: fetch metadata unless one has answered before. Raises `ClientError`."""
    if not core.cluster.brokers:
        yield from refresh_metadata(core, (), timeout=deadline - core.now)


def this_broker(node_of: Callable[[Any], int | None]) -> Route:
    """Make a route to the broker id that `node_of` returns for an item; None means any broker. An id that is not in
    the cluster is a final error.
    """

    def route(core: ClientCore, items: Sequence[Any], deadline: float) -> Operation[Routed]:
        yield from refresh_metadata(core, (), timeout=deadline - core.now)
        routed = Routed()
        for item in items:
            node = node_of(item)
            if node is None or node in core.cluster.brokers:
                routed.by_node.setdefault(node, []).append(item)
            else:
                known = ", ".join(map(str, sorted(core.cluster.brokers)))
                routed.missing[item] = KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node} (brokers: {known})"
                )
        return routed

    return route


def to_leaders(core: ClientCore, items: Sequence[Any], deadline: float) -> Operation[Routed]:
    """Route partitions (topic, number) to their leaders. An unknown topic or partition is a final error."""
    names = list(dict.fromkeys(topic for topic, _ in items))
    yield from refresh_metadata(core, names, timeout=deadline - core.now)
    routed = Routed()
    for item in items:
        try:
            node = core.cluster.leader(*item)
        except KafkaError as error:
            missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            final = missing or not is_retriable(error)
            (routed.missing if final else routed.errors)[item] = error
            continue
        routed.by_node.setdefault(node, []).append(item)
    return routed


def to_coordinators(core: ClientCore, items: Sequence[Any], deadline: float) -> Operation[Routed]:
    """Route groups, given by their ids, to their coordinators."""
    return _to_coordinators(core, items, deadline, _GROUP_KEY, "group")


def to_transaction_coordinators(core: ClientCore, items: Sequence[Any], deadline: float) -> Operation[Routed]:
    """Route transactional ids to their coordinators."""
    return _to_coordinators(core, items, deadline, _TRANSACTION_KEY, "transactional id")


def _to_coordinators(
    core: ClientCore, items: Sequence[Any], deadline: float, key_type: int, noun: str
) -> Operation[Routed]:
    """Route items to their coordinators. Since version 4, one FindCoordinator request covers all items (KIP-699)."""
    from odradek.wire.messages.find_coordinator import FindCoordinatorRequest

    yield from reachable(core, deadline)
    message = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(items))
    if len(items) == 1:
        message.key = items[0]
    call = core.call(message, deadline=deadline)
    yield Wait([call])
    routed = Routed()
    if call.error is not None:
        error = _as_call_error(call.error)
        if not is_retriable(error):
            raise error
        routed.errors = dict.fromkeys(items, error)
        return routed
    response = call.response
    single = [(items[0], response)] if len(items) == 1 and not response.coordinators else []
    for key, found in [(each.key, each) for each in response.coordinators] or single:
        failure = item_error(found.error_code, found.error_message, f"{noun} {key}")
        if failure is not None:
            (routed.errors if is_retriable(failure) else routed.missing)[key] = failure
        else:
            core.cluster.add_brokers([_known(core, Broker(found.node_id, found.host, found.port))])
            routed.by_node.setdefault(found.node_id, []).append(key)
    for item in items:
        if not (
            item in routed.errors
            or item in routed.missing
            or any(item in keys for keys in routed.by_node.values())
        ):
            routed.missing[item] = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"{noun} {item}: the broker's answer names no coordinator"
            )
    return routed


def _known(core: ClientCore, broker: Broker) -> Broker:
    """Return the broker as metadata describes it, including its rack. If its address in metadata is
    different, return `broker` unchanged.
    """
    known = core.cluster.brokers.get(broker.node_id)
    return known if known is not None and (known.host, known.port) == (broker.host, broker.port) else broker
