"""A wrong argument fails only its own call, whose error names the argument. Records of other callers arrive."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from odradek import Admin, Consumer, KafkaError, Producer
from odradek.client.admin import NewTopic
from odradek.client.admin.admin_methods import AsyncAdminMethods
from odradek.client.consumer.consumer_types import ConsumerGroupMetadata
from odradek.client.core.annotated_arguments import hints_of, judge
from odradek.client.core.arguments import (
    TIMESTAMP_MS_MAX,
    as_headers,
    as_integer,
    as_seconds,
    as_text,
    as_timestamp,
)
from odradek.client.errors import BufferFull, RequestTimedOut
from tests.client.shells.wrong_values import WRONG, public_methods, wrong_calls
from tests.node_process import RunningNode

GOOD: dict[str, Any] = {
    "data": bytearray(100),
    "group": ConsumerGroupMetadata("g"),
    "offsets": {},
    "partition": 0,
    "record_count": 1,
    "times_ms": {},
    "timeout": 5.0,
    "topics": [],
}
"""Good values of the arguments that a method requires, besides the tested one."""
CONSUMERS_NOT_CALLED = {
    "close": "ends the consumer",
    "poll": "waits for as long as it is told: its time is judged by a test of its own",
    "poll_batches": "as poll",
}
NOT_CALLED = {
    "call_when_done": "of futures, which give it their own batch",
    "close": "ends the producer: see the test of its own",
    "wait_for": "of futures, which give it their own batch",
}


def complaint(call: Callable[[], object], what: str, parameter: str) -> list[str]:
    """Make a call. Return a complaint if it raises anything but a refusal that names the parameter."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return [] if parameter in str(error) else [f"{what} names no argument: {error!r}"]
    except (KafkaError, BufferFull, RequestTimedOut, RuntimeError):
        return []
    except Exception as error:  # noqa: BLE001 - it becomes the complaint
        return [f"{what}: {error!r}"]
    return []


def test_good_records_arrive_whatever_else_a_producer_is_given(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """Each parameter of a producer's methods gets wrong values of every kind, and all good records in between arrive.

    A wrong value is refused in its call, or is accepted and harmless. A refusal by type or range names the argument.
    """
    topic = fresh_topic("wrong")
    good, complaints = [], []
    with Producer(bootstrap_servers=node.bootstrap, linger_ms=1, max_block_ms=2000) as producer:
        for name in public_methods(Producer):
            if name in NOT_CALLED:
                continue
            for parameter, kind, call in wrong_calls(getattr(producer, name), {**GOOD, "topic": topic}):
                if parameter == "topic" and kind in ("text", "NUL"):
                    continue  # only the broker can refuse such topic names
                good.append(producer.send(topic, b"%d" % len(good), partition=0))
                complaints += complaint(call, f"{name}({parameter}={kind})", parameter)
        assert len(good) > 100
        assert not complaints, "\n".join(complaints)
        offsets = [future.result(30).offset for future in good]
    assert offsets == sorted(offsets)
    with Consumer(bootstrap_servers=node.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        values: list[bytes | None] = []
        while consumer.position((topic, 0)) < end:
            values += [record.value for record in consumer.poll(1)]
    numbers = [value for value in values if value is not None and value.isdigit()]
    assert numbers == [b"%d" % number for number in range(len(good))]


def test_a_consumer_reads_on_whatever_it_is_given(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """Each parameter of a consumer's methods gets wrong values. The consumer still reads every record once."""
    topic = fresh_topic("wrong")
    complaints = []
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0)
    keys = {
        "group_id": topic,
        "enable_auto_commit": False,
        "request_timeout_ms": 5000,
        "default_api_timeout_ms": 5000,
    }
    with Consumer(bootstrap_servers=node.bootstrap, **keys) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        known = {**GOOD, "topic": topic, "partition": (topic, 0), "partitions": [(topic, 0)], "offset": 0}
        for name in public_methods(Consumer):
            if name in CONSUMERS_NOT_CALLED:
                continue
            for parameter, kind, call in wrong_calls(getattr(consumer, name), known):
                if (parameter, kind) == ("callback", "class"):
                    continue  # a class is callable, and its error is raised by the poll
                if name != "subscribe":
                    consumer.unsubscribe()
                    consumer.assign([(topic, 0)])
                complaints += complaint(call, f"{name}({parameter}={kind})", parameter)
        assert not complaints, "\n".join(complaints)
        consumer.unsubscribe()
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        values = [record.value for record in itertools.islice(consumer, 100)]
    assert values == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"headers": [("a", "x")]}, "headers"),
        ({"headers": [(b"a", b"x")]}, "headers"),
        ({"headers": {"a": b"x"}}, "headers"),
        ({"headers": [("\ud800", b"x")]}, "headers"),
        ({"timestamp_ms": 1.5}, "timestamp_ms"),
        ({"timestamp_ms": -2}, "timestamp_ms"),
        ({"timestamp_ms": TIMESTAMP_MS_MAX + 1}, "timestamp_ms"),
        ({"partition": 1.0}, "partition"),
        ({"partition": -1}, "partition"),
        ({"value": "text"}, "value.serializer"),
        ({"key": 5}, "key.serializer"),
        ({"topic": None}, "topic"),
        ({"topic": b"t"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "\ud800"}, "topic"),
    ],
)
def test_send_names_the_argument_that_is_wrong(node: RunningNode, keys: dict[str, Any], message: str) -> None:
    """`send` raises at once, and its error names the wrong argument."""
    with (
        Producer(bootstrap_servers=node.bootstrap) as producer,
        pytest.raises((TypeError, ValueError), match=message),
    ):
        producer.send(**{"topic": "t", "value": b"v", **keys})


def test_what_can_change_is_copied_and_headers_are_read_once(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """Values that may change later (bytearray, memoryview) are copied in the call.

    Headers from a generator are read once, and None means no headers.
    """
    topic = fresh_topic("copied")
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    with Producer(bootstrap_servers=node.bootstrap, linger_ms=500) as producer:
        producer.send(
            topic, value, memoryview(key), (pair for pair in [("a", header), ["b", None]]), partition=0
        )
        producer.send(topic, b"second", headers=None, partition=0)
        for each in (value, key, header):
            each[:] = b"?" * len(each)
    with Consumer(bootstrap_servers=node.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        first, second = itertools.islice(consumer, 2)
    assert (first.value, first.key) == (b"value", b"key")
    assert list(first.headers) == [("a", b"header"), ("b", None)]
    assert list(second.headers) == []


@pytest.mark.parametrize("name", sorted(public_methods(AsyncAdminMethods)))
def test_an_administrators_arguments_are_judged_by_their_annotations(name: str) -> None:
    """Each parameter of an administrator's operations gets wrong values.

    Each value is accepted, or raises TypeError or ValueError that names the parameter.
    """
    operation = inspect.unwrap(getattr(AsyncAdminMethods, name))
    parameters = list(inspect.signature(operation).parameters.values())[1:]
    for parameter, (kind, make) in itertools.product(parameters, WRONG.items()):
        what = f"{name}({parameter.name}={kind})"
        assert not complaint(partial(_judge_alone, operation, parameter.name, make()), what, parameter.name)


def _judge_alone(operation: Callable[..., object], name: str, value: object) -> None:
    """Check one argument as `judged` checks all arguments of a call."""
    if name == "timeout":
        as_seconds(name, value)
    else:
        judge(name, value, hints_of(operation)[name])


def test_a_wrong_argument_of_an_administrator_ends_its_own_call(node: RunningNode) -> None:
    """The error of an administrator's call names the path to the wrong value. The client remains usable."""
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        for call, path in (
            (lambda: admin.create_topics([NewTopic("t", partitions="3")]), r"topics\[0\].partitions"),
            (lambda: admin.create_topics([NewTopic("t", configs={"a": 5})]), r"topics\[0\].configs\['a'\]"),
            (lambda: admin.create_topics([3]), r"topics\[0\]"),
            (lambda: admin.describe_groups(["a\udcffb"]), r"group_ids\[0\]"),
            (lambda: admin.describe_groups("group"), "group_ids"),
            (lambda: admin.list_transactions(producer_ids=["a"]), r"producer_ids\[0\]"),
            (lambda: admin.describe_cluster(timeout="soon"), "timeout"),
        ):
            with pytest.raises((TypeError, ValueError), match=path):
                call()
        assert [each.name for each in admin.describe_topics([])] == []
        assert admin.delete_groups(each for each in ("no-such-group",))


def test_integers_of_others_are_taken() -> None:
    """Integers of numpy and pandas are accepted, as all types that `operator.index` accepts."""

    class Index:
        def __index__(self) -> int:
            return 5

    assert as_integer("partition", Index()) == 5
    assert as_timestamp("timestamp_ms", Index()) == 5


@pytest.mark.parametrize("kind", list(WRONG))
def test_each_judge_refuses_by_type_or_range_and_names_the_argument(kind: str) -> None:
    """The functions that check arguments raise only TypeError or ValueError, and name the argument."""
    for each in (as_integer, as_timestamp, as_text, as_seconds, as_headers):
        assert not complaint(partial(each, "argument", WRONG[kind]()), each.__name__, "argument")
