"""A client that may read topics, but not delete them, tries to delete each one in the moment of its creation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "client"
TOPICS = 60
CONNECTIONS = 4
TOPIC, PREFIXED, READ, ALLOW, ANY = 2, 4, 3, 3, 1
READER = "User:client"
STATES_SINCE = 6


class _Flood:
    """One connection that asks again and again, in one version of the request, to delete the newest topic."""

    def __init__(self, conn: Conn, version: int) -> None:
        self._conn = conn
        self._version = version
        self.name = ""
        self.is_over = False
        self.codes: Counter[int] = Counter()
        self.asked = threading.Event()
        """Set when the connection has asked for the newest name."""

    def run(self) -> None:
        while not self.is_over:
            name = self.name
            if self._version >= STATES_SINCE:
                request = DeleteTopicsRequest([DeleteTopicState(name)], [], 5000)
            else:
                request = DeleteTopicsRequest([], [name], 5000)
            self.codes[self._conn.call(request, self._version).responses[0].error_code] += 1
            if name == self.name:
                self.asked.set()


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Make topics one by one, while a client that may only read them asks for their deletion without a pause."""
    prefix = f"r-{uuid4().hex[:8]}-"
    names = [f"{prefix}{number}" for number in range(max(6, round(TOPICS * scale)))]
    with place.admin() as admin, ExitStack() as stack:
        rule = AclCreation(TOPIC, prefix, PREFIXED, READER, "*", READ, ALLOW)
        assert not admin.call(CreateAclsRequest([rule])).results[0].error_code
        floods = [
            _Flood(stack.enter_context(place.client()), version)
            for version in (STATES_SINCE, STATES_SINCE - 1) * (CONNECTIONS // 2)
        ]
        codes = _race(admin, floods, names)
        gone = _deleted(admin, names)
        admin.call(DeleteAclsRequest([DeleteAclsFilter(TOPIC, prefix, PREFIXED, None, None, ANY, ANY)]))
    allowed = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    told = {ErrorCode(code).name: count for code, count in codes.items()}
    yield Outcome("a reader is never told that it has deleted a topic", set(codes) <= allowed, f"{told}")
    yield Outcome(
        "a topic that a reader asks to delete while it is made stays",
        not gone,
        f"{gone} of {len(names)} gone",
    )


def _race(admin: Conn, floods: list[_Flood], names: list[str]) -> Counter[int]:
    """Make all topics during the flood. Return how often the reader got each error code."""
    for flood in floods:
        flood.name = names[0]
    threads = [threading.Thread(target=flood.run) for flood in floods]
    for thread in threads:
        thread.start()
    try:
        for name in names:
            for flood in floods:
                flood.asked.clear()
                flood.name = name
            _wait_until_asked(floods)
            created = admin.call(CreateTopicsRequest([CreatableTopic(name, 1, 1, [], [])], 5000, False))
            assert not created.topics[0].error_code, created
            for flood in floods:
                flood.asked.clear()
            _wait_until_asked(floods)
    finally:
        for flood in floods:
            flood.is_over = True
        for thread in threads:
            thread.join()
    return sum((flood.codes for flood in floods), Counter())


def _wait_until_asked(floods: list[_Flood]) -> None:
    for flood in floods:
        assert flood.asked.wait(60), "the reader's connection has ended"


def _deleted(admin: Conn, names: list[str]) -> int:
    """Delete all topics. Return how many were already gone."""
    answer = admin.call(DeleteTopicsRequest([DeleteTopicState(name) for name in names], [], 30_000))
    return sum(each.error_code != 0 for each in answer.responses)
