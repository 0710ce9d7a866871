"""Patterns that would keep a coordinator busy are refused by an estimate. Ordinary patterns are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.budget.values import DEAR_PATTERN, HARD_PATTERN
from odradek.data_plane.groups.consumers.patterns import FindTopics, check_pattern, find_topics
from odradek.serving.patterns import (
    READING_MICROSECONDS_MAX,
    is_pattern,
    matching_names,
    reading_microseconds,
)
from odradek.wire.errors import ErrorCode, KafkaError
from tests.groups.consumers.consumer_script import image_of

ORDINARY = (
    ".*",
    "orders-.*",
    "(?i)orders\\..+",
    "[a-zA-Z0-9._-]{1,249}",
    "([a-z]{1,63}\\.){1,5}[a-z]{2,63}",
    "[a-z]{1,63}\\.[a-z]{1,63}",
    "\\w+-\\d{4}-\\d{2}-\\d{2}",
    "\\x{61}\\x{62}.*",
    "\\pL{1,10}",
    "|".join(f"topic-{number}" for number in range(1_000)),
    DEAR_PATTERN,
)
HOSTILE = (
    HARD_PATTERN,
    "\\pL{1000}",
    "(\\pL{30}){30}",
    "[\\p{L}\\p{N}]" * 50,
    "(?i)[\\x{80}-\\x{10ffff}]" * 1_200,
    "(\\W\\W\\W\\W){200}" * 30,
    "(?:a|b)?" * 4_000,
)


@pytest.mark.parametrize("pattern", ORDINARY, ids=range(len(ORDINARY)))
def test_ordinary_patterns_are_read(pattern: str) -> None:
    """Patterns as people write them to choose topics are far below the limit."""
    assert reading_microseconds(pattern) < READING_MICROSECONDS_MAX
    assert is_pattern(pattern)
    check_pattern(pattern)


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_patterns_are_refused_unread(pattern: str) -> None:
    """Some patterns would keep RE2 busy for ten milliseconds to a second, with Python's lock held. They are refused
    before RE2 reads them."""
    assert reading_microseconds(pattern) > READING_MICROSECONDS_MAX
    assert not is_pattern(pattern)
    with pytest.raises(KafkaError) as refused:
        check_pattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@given(st.text(alphabet="a.[]()\\px{}1,9?|", max_size=60))
def test_an_estimate_is_made_of_any_text(pattern: str) -> None:
    """The estimate of any text is at least 0, and does not shrink if the text is repeated."""
    estimate = reading_microseconds(pattern)
    assert estimate >= 0
    assert reading_microseconds(f"({pattern}){{1000}}") >= estimate


def test_a_pattern_that_another_version_has_written_matches_nothing() -> None:
    """If the log has a pattern that this version refuses, it matches nothing. The group's other patterns still
    match."""
    found = find_topics(FindTopics("g", (HARD_PATTERN, "t.*"), image_of({"t1": 1, "u": 1}, 1), None, 0)).found
    assert {pattern[:6]: sorted(each.topics) for pattern, each in found.items()} == {
        HARD_PATTERN[:6]: [],
        "t.*": ["t1"],
    }


def test_names_match_as_a_whole() -> None:
    """A pattern matches a topic only if it matches the whole name."""
    assert matching_names("a+", ["a", "aa", "ab", "ba", ""]) == {"a", "aa"}
