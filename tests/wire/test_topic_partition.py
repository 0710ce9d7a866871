"""The names of a partition are tuples like any other to code that only knows tuples."""

from __future__ import annotations

import json
from typing import Any

import pytest

import odradek
from odradek.client.consumer import consumer_types
from odradek.wire.topic_partition import TopicIdPartition, TopicPartition

NAMES = [(TopicPartition("words", 3), ("words", 3)), (TopicIdPartition(bytes(16), 3), (bytes(16), 3))]


@pytest.mark.parametrize(("named", "plain"), NAMES)
def test_a_name_is_the_plain_tuple_of_its_fields(named: Any, plain: Any) -> None:
    """Each finds in a dict or set what was put there under the other; both sort alike."""
    assert named == plain
    assert hash(named) == hash(plain)
    assert {plain: "there"}[named] == {named: "there"}[plain] == "there"
    assert sorted([named, (plain[0], 2)]) == [(plain[0], 2), plain]


def test_json_has_a_list() -> None:
    """A document has a partition in the same form as the plain tuple."""
    assert json.dumps(TopicPartition("words", 3)) == json.dumps(("words", 3))


def test_text() -> None:
    """A message names a partition as Kafka's tools do."""
    assert f"{TopicPartition('words', 3)}" == "words-3"


def test_users_import_the_same_class() -> None:
    """There is one class, under the names by which users have imported it."""
    assert odradek.TopicPartition is TopicPartition
    assert consumer_types.TopicPartition is TopicPartition
