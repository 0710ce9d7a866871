"""Kafka Streams processes exactly once while nodes and the program itself are killed."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from jepsen_tests.real_cluster import Cluster
from testkit.kafka_server import KAFKA_VERSION
from tests.ecosystem.programs import compiled, create_topics, jars, java, produce, read_committed, until

pytestmark = [pytest.mark.ecosystem, pytest.mark.java]

PROGRAM = Path(__file__).parent / "WordCount.java"
LINES, WORDS_PER_LINE, WORDS = 6_000, 10, 100


def test_words_are_counted_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    """KIP-129, KIP-447: `exactly_once_v2` counts each word once, and no committed count ever falls. A node is killed
    and restarted. Then the program is killed, its state is deleted, and another node is killed. The counts are restored
    from the changelog.
    """
    path = compiled(PROGRAM, jars(f"kafka-{KAFKA_VERSION}"), tmp_path / "classes")
    random = Random(1)
    lines = [" ".join(f"w{random.randrange(WORDS)}" for _ in range(WORDS_PER_LINE)) for _ in range(LINES)]
    expected = Counter(word for line in lines for word in line.split())
    create_topics(cluster.bootstrap, {"lines": 2, "counts": 2})
    log, state = tmp_path / "streams.log", tmp_path / "state"
    arguments = (cluster.bootstrap, state, "lines", "counts")

    def sum_so_far() -> int:
        return sum(last_counts(cluster.bootstrap)[0].values())

    def note() -> str:
        return log.read_text()[-4000:]

    with java("Kafka Streams", path, "WordCount", *arguments, log=log) as program:
        assert produce(cluster.bootstrap, "lines", lines[: LINES // 2]) == LINES // 2
        until("the first counts", sum_so_far, note)
        cluster.kill(2)
        until("half of the words", lambda: sum_so_far() == LINES // 2 * WORDS_PER_LINE, note)
        cluster.start(2)
        assert produce(cluster.bootstrap, "lines", lines[LINES // 2 :]) == LINES - LINES // 2
        program.kill()
    shutil.rmtree(state)
    cluster.wait_until_whole()
    cluster.kill(3)
    with java("Kafka Streams", path, "WordCount", *arguments, log=log):
        until("all words", lambda: sum_so_far() >= LINES * WORDS_PER_LINE, note)
    counts, falls = last_counts(cluster.bootstrap)
    assert counts == expected
    assert not falls, f"{falls} counts are below an earlier one"


def last_counts(bootstrap: str) -> tuple[Counter[str], int]:
    """Return the last committed count of each word, and how many counts are lower than the one before."""
    found: Counter[str] = Counter()
    falls = 0
    for key, value in read_committed(bootstrap, "counts"):
        assert key is not None
        assert value is not None
        word, count = key.decode(), int.from_bytes(value, "big")
        falls += count < found[word]
        found[word] = count
    return found, falls
