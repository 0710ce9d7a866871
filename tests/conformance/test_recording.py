"""The recorded answers beside a running Apache Kafka: a file of its own, so that it runs beside the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kafka_server import kafka_server
from tests.conformance.corpus import APIS
from tests.conformance.partner import Partner, partner_of
from tests.conformance.servers import SETTINGS
from tests.kafka_jars import TEST_HEAP


@pytest.fixture(scope="module")
def fresh_kafka(kafka_jars: Path) -> Iterator[Partner]:
    """An Apache Kafka with nothing on it."""
    with kafka_server(settings=SETTINGS, heap=TEST_HEAP) as server:
        yield partner_of(server)


@pytest.mark.java
@pytest.mark.parametrize("api", APIS)
def test_the_recording_is_what_kafka_answers(fresh_kafka: Partner, api: str) -> None:
    """The recorded answers are those of the running original."""
    changed = fresh_kafka.differences(api)
    assert not changed, "\n".join(changed[:40])
