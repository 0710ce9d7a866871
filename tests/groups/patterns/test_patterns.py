"""Our matcher of patterns accepts the same patterns as Kafka's, and matches the same topic names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odradek.data_plane.groups.consumers.patterns import FindTopics, check_pattern, find_topics
from odradek.wire.errors import KafkaError
from tests.groups.consumers.consumer_script import image_of
from tests.groups.patterns.recording import RECORDING
from tests.groups.patterns.table import NAMES, PATTERNS

INVALID = "INVALID_REGULAR_EXPRESSION"
DIFFERENT = {
    "(a{100}){11}": "RE2 repeats a part at most 1,000 times, also by repetitions in one another",
    "((a{10}){10}){11}": "the same",
    r"\C": "RE2 knows it as any one byte",
    r"\C+": "the same",
    "(?P<n>a)(?P<n>b)": "RE2 takes two groups of one name",
    "(?<n>a)(?<n>b)": "the same",
    "(?P<é>a)": "RE2 takes letters beyond ASCII in the name of a group",
}
"""Patterns on which our RE2 and Kafka's RE2/J differ. docs/groups.md lists them."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "groups.md"


@pytest.fixture(scope="module")
def kafka() -> dict[str, Any]:
    """Return Kafka's answer to each pattern: an error, or the matching names without internal topics."""
    return {
        pattern: answer if answer == INVALID else [name for name in answer if name in NAMES]
        for pattern, (answer,) in RECORDING.load().items()
    }


def our_answer(pattern: str) -> object:
    """Return the error of a member's pattern, or the sorted names that a worker finds for it."""
    try:
        check_pattern(pattern)
    except KafkaError as refused:
        return refused.code.name
    image = image_of(dict.fromkeys(NAMES, 1), 1)
    return sorted(find_topics(FindTopics("group", (pattern,), image, None, 0)).found[pattern].topics)


def test_the_recording_is_of_these_patterns(kafka: dict[str, Any]) -> None:
    """If the table has changed since Kafka was asked, the recording is refused until it is made again."""
    assert RECORDING.is_sealed()
    assert len(PATTERNS) >= 200
    assert list(kafka) == list(PATTERNS)
    refused = [pattern for pattern, answer in kafka.items() if answer == INVALID]
    matching = [pattern for pattern, answer in kafka.items() if isinstance(answer, list) and answer]
    assert len(refused) >= 80
    assert len(matching) >= 120


@pytest.mark.parametrize("pattern", PATTERNS, ids=range(len(PATTERNS)))
def test_a_pattern_means_what_it_means_to_kafka(pattern: str, kafka: dict[str, Any]) -> None:
    """Kafka and our matcher refuse the same patterns and match the same names, apart from the listed differences."""
    assert (our_answer(pattern) == kafka[pattern]) == (pattern not in DIFFERENT)


def test_the_page_names_each_difference() -> None:
    """docs/groups.md lists each pattern on which the two differ."""
    page = PAGE.read_text()
    assert not [pattern for pattern in DIFFERENT if f"`{pattern}`" not in page]
