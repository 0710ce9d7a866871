"""Measures the costs of an authorizer: the check of a Produce or Fetch, a remembered decision, a new decision, and a
logged refusal.

    python -m bench.hot_path.authorizer [--acls 10000]

The cost of a check is the time of a handler with the check, minus the time of the same handler without it. Prints
nanoseconds per request, the best of several runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, ClassVar

from odradek.data_plane.handlers.doors.producing_doors import fetch_door, produce_door
from odradek.env.real import RealEnv
from odradek.node.logging import make_logger
from odradek.security.acls.acl_index import AclIndex, clients_of
from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings, Rights
from odradek.security.acls.rules import Acl, Operation, Permission, ResourceType
from odradek.security.audit.audit_log import AuditLog, AuditSettings
from odradek.security.audit.auditor import Auditor
from odradek.security.doors.door import GuardedHandler
from odradek.serving.contract import Context
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.fetch import FetchRequest, ReplicaState
from odradek.wire.messages.produce import ProduceRequest, TopicProduceData

RUNS, CALLS = 7, 50_000
ANONYMOUS, HOST = "User:ANONYMOUS", "127.0.0.1"


class _Topic:
    name = "topic-0"
    topic_id = bytes(range(16))


class _Topics:
    topics: ClassVar[dict[str, Any]] = {_Topic.name: _Topic}
    topics_by_id: ClassVar[dict[bytes, Any]] = {_Topic.topic_id: _Topic}


def nanoseconds(call: Callable[[], object]) -> float:
    """Return the nanoseconds of one call: the best of several runs."""
    best = float("inf")
    for _ in range(RUNS):
        began_at = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - began_at) / CALLS)
    return best


def measure(acls: int) -> dict[str, float]:
    """Return the nanoseconds of each kind of check and decision, for an authorizer with `acls` ACLs."""
    authorizer = Authorizer(AuthorizerSettings())
    rules = {
        number.to_bytes(16, "big"): Acl(
            ResourceType.TOPIC, f"topic-{number}", 3, ANONYMOUS, "*", Operation.ALL, Permission.ALLOW
        )
        for number in range(acls)
    }
    authorizer.apply(AclIndex.of(rules))
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
        without = nanoseconds(lambda request=request: alone(context, request))  # type: ignore[misc]  # the lambda runs at once
        behind = nanoseconds(lambda guarded=guarded, request=request: guarded(context, request))  # type: ignore[misc]  # so does this one
        figures[f"the door of {name}"] = behind - without
    rights = Rights(authorizer, ANONYMOUS, HOST)
    figures["a remembered decision"] = nanoseconds(
        lambda: rights.allows(int(Operation.READ), int(ResourceType.TOPIC), "topic-0")
    )
    clients = clients_of(ANONYMOUS, HOST)
    figures["a new decision"] = nanoseconds(
        lambda: authorizer.allows(clients, int(Operation.READ), int(ResourceType.TOPIC), "topic-0")
    )
    figures["a refusal, put down"] = _refusal(authorizer)
    return figures


def _refusal(authorizer: Authorizer) -> float:
    """Measure a refusal that is remembered, and its line in the audit log. In this process no task writes the log to
    disk. So lines with the same text are only counted.
    """
    auditor = Auditor(1)
    authorizer.auditor = auditor
    with tempfile.TemporaryDirectory() as name:
        env = RealEnv()
        auditor.lines = AuditLog(env, make_logger(env.clock), env.open_dir(name), AuditSettings())
        rights = Rights(authorizer, "User:nobody", HOST, listener="SASL")

        def refuse() -> None:
            rights.allows(int(Operation.READ), int(ResourceType.TOPIC), "topic-0")
            rights.log_denials(ApiKey.FETCH)

        return nanoseconds(refuse)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="What an authorizer costs each request.")
    parser.add_argument(
        "--acls", type=int, default=10_000, help="number of ACLs on the node (default: 10,000)"
    )
    for name, figure in measure(parser.parse_args().acls).items():
        print(f"{name:24} {figure:8,.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
