"""One corpus of requests, answered by our node and by Apache Kafka 4.3, compared field by field."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from bench.kafka_server import kafka_server
from bench.odradek_server import start_odradek
from bench.processes import ServerProcess
from tests.conformance import document
from tests.conformance.comparison import RECORDING, differences, load
from tests.conformance.corpus import APIS, CORPUS, cases_of, hold, key_of
from tests.conformance.deliberate import DELIBERATE
from tests.conformance.servers import SETTINGS
from tests.conformance.talk import wait_until_ready
from tests.kafka_jars import TEST_HEAP
from tests.node.raw_client import RawClient
from wire.api import PRODUCE_ADVERTISED_MIN, ApiKey
from wire.messages.api_versions import ApiVersionsRequest


@attrs.define
class Partner:
    """The server of a session, and what has been heard of it so far."""

    bootstrap: str
    advertised: dict[int, tuple[int, int]]
    tag: str = attrs.field(factory=lambda: os.urandom(3).hex())
    found: dict[str, list[str]] = attrs.field(factory=dict)
    asked: set[tuple[int, int]] = attrs.field(factory=set)

    def differences(self, api: str) -> list[str]:
        """Every difference of one API from the recording, a line each; asked for once."""
        if api not in self.found:
            recorded = load(api)
            held = hold(self.bootstrap, self.tag, cases_of(api))
            self.asked |= held.asked
            self.found[api] = [
                f"{name}: {difference}"
                for name, given in held.answers.items()
                for difference in differences(recorded[name], given)
            ]
        return self.found[api]


def _partner(server: ServerProcess) -> Partner:
    wait_until_ready(server.bootstrap)
    with RawClient(server.bootstrap) as client:
        entries = client.request(ApiVersionsRequest("s", "1"), 3).api_keys
    return Partner(
        server.bootstrap, {entry.api_key: (entry.min_version, entry.max_version) for entry in entries}
    )


@pytest.fixture(scope="module")
def fresh_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partner]:
    """A node of our own, with nothing on it."""
    server = start_odradek(tmp_path_factory.mktemp("conformance"), settings=SETTINGS)
    try:
        yield _partner(server)
        assert server.is_running(), f"the node ended during the corpus:\n{server.log_tail()}"
    finally:
        server.kill()


@pytest.fixture(scope="module")
def fresh_kafka(kafka_jars: Path) -> Iterator[Partner]:
    """An Apache Kafka with nothing on it."""
    with kafka_server(settings=SETTINGS, heap=TEST_HEAP) as server:
        yield _partner(server)


def test_the_recording_holds_every_case() -> None:
    """A case that Kafka never answered proves nothing, and a recorded one that is gone is forgotten."""
    assert {path.stem for path in RECORDING.iterdir()} == set(APIS)
    for api in APIS:
        assert list(load(api)) == cases_of(api)
    assert sum(len(cases_of(api)) for api in APIS) == len(CORPUS)


def test_the_document_says_what_the_corpus_says() -> None:
    """docs/compatibility.md is written from the corpus: `python -m tests.conformance document`."""
    assert document.PATH.read_text() == document.render()


@pytest.mark.parametrize("api", APIS)
def test_we_answer_like_kafka(fresh_node: Partner, api: str) -> None:
    """Every field of every answer, but for the differences that stand in `deliberate.py`."""
    found = fresh_node.differences(api)
    unexplained = [line for line in found if not any(rule.covers(line) for rule in DELIBERATE)]
    assert not unexplained, "\n".join(unexplained[:40])


def test_every_deliberate_difference_occurs(fresh_node: Partner) -> None:
    """A rule that explains nothing any more must go."""
    found = [line for api in APIS for line in fresh_node.differences(api)]
    obsolete = [rule.reason for rule in DELIBERATE if not any(rule.covers(line) for line in found)]
    assert not obsolete


def test_every_version_is_asked(fresh_node: Partner) -> None:
    """Every version of every API that is advertised occurs in the corpus, and nothing else does."""
    assert fresh_node.advertised.keys() == {int(key_of(api)) for api in APIS}
    for api in APIS:
        fresh_node.differences(api)
    advertised = {
        (key, version)
        for key, (first, last) in fresh_node.advertised.items()
        for version in range(first, last + 1)
    }
    refused = {(int(ApiKey.PRODUCE), version) for version in range(PRODUCE_ADVERTISED_MIN, 3)}
    assert advertised - fresh_node.asked <= refused


@pytest.mark.java
@pytest.mark.parametrize("api", APIS)
def test_the_recording_is_what_kafka_answers(fresh_kafka: Partner, api: str) -> None:
    """The recorded answers are those of the running original."""
    changed = fresh_kafka.differences(api)
    assert not changed, "\n".join(changed[:40])
