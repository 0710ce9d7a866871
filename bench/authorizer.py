"""What an authorizer costs each request: the door of Produce and Fetch, a remembered decision, and a new one.

    python -m bench.authorizer [--acls 10000]

Compares a handler behind its door with the same handler alone. Prints nanoseconds for one request, the best of some runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

from data_plane.handlers.doors.producing_doors import fetch_door, produce_door
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings, Rights
from odradek.security.acls.rules import Acl, Operation, Permission, ResourceType
from odradek.security.doors.door import GuardedHandler
from odradek.serving.contract import Context
from wire.messages.fetch import FetchRequest, ReplicaState
from wire.messages.produce import ProduceRequest, TopicProduceData

RUNS, CALLS = 7, 50_000
ANONYMOUS, HOST = "User:ANONYMOUS", "127.0.0.1"


class _Topic:
    name = "topic-0"
    topic_id = bytes(range(16))


class _Topics:
    topics: ClassVar[dict[str, Any]] = {_Topic.name: _Topic}
    topics_by_id: ClassVar[dict[bytes, Any]] = {_Topic.topic_id: _Topic}


def nanoseconds(call: Callable[[], object]) -> float:
    """The time of one call, at best."""
    best = float("inf")
    for _ in range(RUNS):
        began_at = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - began_at) / CALLS)
    return best


def measure(acls: int) -> dict[str, float]:
    """Nanoseconds by what is measured, with so many ACLs."""
    authorizer = Authorizer(AuthorizerSettings())
    rules = {
        number.to_bytes(16, "big"): Acl(
            ResourceType.TOPIC, f"topic-{number}", 3, ANONYMOUS, "*", Operation.ALL, Permission.ALLOW
        )
        for number in range(acls)
    }
    authorizer.apply(rules, ())
    topics = _Topics()
    fetch = FetchRequest(None, -1, ReplicaState(-1, -1), 0, 0, 1, 0, 0, -1, [], [], "")
    produce = ProduceRequest(None, -1, 1, [TopicProduceData("", _Topic.topic_id, [])])
    figures = {}
    context = Context("PLAINTEXT", HOST)
    for name, door, request, version in (
        ("produce", produce_door, produce, 13),
        ("fetch", fetch_door, fetch, 17),
    ):
        context.api_version = version

        def alone(context: Context, request: Any) -> None:
            return None

        guarded = GuardedHandler(alone, door, authorizer, lambda: topics).handle
        without = nanoseconds(lambda request=request: alone(context, request))  # type: ignore[misc]  # bound at once
        behind = nanoseconds(lambda guarded=guarded, request=request: guarded(context, request))  # type: ignore[misc]  # too
        figures[f"the door of {name}"] = behind - without
    rights = Rights(authorizer, ANONYMOUS, HOST)
    figures["a remembered decision"] = nanoseconds(
        lambda: rights.allows(int(Operation.READ), int(ResourceType.TOPIC), "topic-0")
    )
    figures["a new decision"] = nanoseconds(
        lambda: authorizer.judge(ANONYMOUS, HOST, int(Operation.READ), int(ResourceType.TOPIC), "topic-0")
    )
    return figures


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="What an authorizer costs each request.")
    parser.add_argument("--acls", type=int, default=10_000, help="how many ACLs there are (default: 10,000)")
    for name, figure in measure(parser.parse_args().acls).items():
        print(f"{name:24} {figure:8,.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
