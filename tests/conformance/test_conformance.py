"""One corpus of requests, answered by our node and by Apache Kafka 4.3, compared field by field."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.wire.api import PRODUCE_ADVERTISED_MIN, ApiKey
from testkit.odradek_server import start_odradek
from tests.conformance import document
from tests.conformance.comparison import RECORDING, load
from tests.conformance.corpus import APIS, CORPUS, cases_of, key_of
from tests.conformance.deliberate import DELIBERATE
from tests.conformance.partner import Partner, partner_of
from tests.conformance.seals import HERE, SHARED, seal_of, seals
from tests.conformance.servers import SETTINGS, Place

RECORDED_ELSEWHERE = frozenset(
    {
        int(ApiKey.CONSUMER_GROUP_HEARTBEAT),
        int(ApiKey.CONSUMER_GROUP_DESCRIBE),
        int(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS),
        int(ApiKey.PUSH_TELEMETRY),
    }
)
"""APIs whose answers tests/groups/beside_kafka and tests/conformance/telemetry compare with Apache Kafka's."""


BETWEEN_SCANS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Some cases begin a transaction right after a scan for timed-out ones, and ask about it before the next scan. On a
loaded machine, the 200 ms of the recording are sometimes too few.
"""


@pytest.fixture(scope="module")
def fresh_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partner]:
    """Start a node of our own without topics or groups."""
    place = Place.of({**SETTINGS, **BETWEEN_SCANS})
    directory = tmp_path_factory.mktemp("conformance")
    server = start_odradek(directory, port=place.port, settings=place.settings)
    try:
        yield partner_of(server)
        assert server.is_running(), f"the node ended during the corpus:\n{server.log_tail()}"
    finally:
        server.kill()


def test_the_recording_holds_every_case() -> None:
    """The recording has an answer of Kafka for each case, and none for a case that was removed."""
    assert {path.stem for path in RECORDING.iterdir()} == set(APIS)
    for api in APIS:
        assert list(load(api)) == cases_of(api)
    assert sum(len(cases_of(api)) for api in APIS) == len(CORPUS)


@pytest.mark.parametrize("api", APIS)
def test_kafka_was_asked_these_questions(api: str) -> None:
    """Kafka's answers were recorded with the cases as they are now. `make conformance` records and seals them."""
    assert seals().get(api) == seal_of(api), (
        "the cases have changed: `make conformance` asks Apache Kafka again"
    )


@pytest.mark.parametrize("change", ["a case", "what cases share", "an answer"])
def test_a_change_breaks_the_seal(change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed character in code or in an answer breaks the seal. A changed docstring or a moved module does not."""
    api = APIS[0]
    before = seal_of(api)
    here = tmp_path / "conformance"
    shutil.copytree(HERE, here, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("tests.conformance.seals.HERE", here)
    monkeypatch.setattr(
        "tests.conformance.seals.SHARED", tuple(here / path.relative_to(HERE) for path in SHARED)
    )
    monkeypatch.setattr("tests.conformance.seals.RECORDING", here / RECORDING.name)
    shared = here / SHARED[0].relative_to(HERE)
    text = shared.read_text().replace('"""', '"""Another text. ', 1)
    shared.write_text(re.sub(r"^from (?:odradek|tests)\b", "from moved", text, count=1, flags=re.MULTILINE))
    assert "from moved" in shared.read_text()
    assert seal_of(api) == before
    path = {"a case": here / "cases" / f"{api}.py", "what cases share": shared}.get(change)
    path = path or here / RECORDING.name / f"{api}.json"
    path.write_text(path.read_text() + "\nmore = 1\n")
    assert seal_of(api) != before


def test_the_document_says_what_the_corpus_says() -> None:
    """docs/compatibility.md equals the output of `python -m tests.conformance document`."""
    assert document.PATH.read_text() == document.render()


@pytest.mark.parametrize("api", APIS)
def test_we_answer_like_kafka(fresh_node: Partner, api: str) -> None:
    """Every field of every answer is Kafka's, apart from the differences in `deliberate.py`."""
    found = fresh_node.differences(api)
    unexplained = [line for line in found if not any(rule.covers(line) for rule in DELIBERATE)]
    assert not unexplained, "\n".join(unexplained[:40])


def test_every_deliberate_difference_occurs(fresh_node: Partner) -> None:
    """Each rule of `deliberate.py` explains at least one difference. A rule that explains none must be removed."""
    found = [line for api in APIS for line in fresh_node.differences(api)]
    obsolete = [rule.reason for rule in DELIBERATE if not any(rule.covers(line) for line in found)]
    assert not obsolete


def test_every_version_is_asked(fresh_node: Partner) -> None:
    """The corpus has every advertised version of every API, and no other version.

    APIs of groups and of client metrics are in other recordings (`RECORDED_ELSEWHERE`).
    """
    assert fresh_node.advertised.keys() - RECORDED_ELSEWHERE == {int(key_of(api)) for api in APIS}
    for api in APIS:
        fresh_node.differences(api)
    advertised = {
        (key, version)
        for key, (first, last) in fresh_node.advertised.items()
        if key not in RECORDED_ELSEWHERE
        for version in range(first, last + 1)
    }
    refused = {(int(ApiKey.PRODUCE), version) for version in range(PRODUCE_ADVERTISED_MIN, 3)}
    assert advertised - fresh_node.asked <= refused
