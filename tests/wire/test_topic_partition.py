"""A TopicPartition behaves like a plain tuple of its fields."""

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
    """A TopicPartition equals the tuple of its fields, has the same hash, and sorts alike."""
    assert named == plain
    assert hash(named) == hash(plain)
    assert {plain: "there"}[named] == {named: "there"}[plain] == "there"
    assert sorted([named, (plain[0], 2)]) == [(plain[0], 2), plain]


def test_json_has_a_list() -> None:
    """In JSON a TopicPartition is a list, like a tuple."""
    assert json.dumps(TopicPartition("words", 3)) == json.dumps(("words", 3))


def test_text() -> None:
    """As text, a TopicPartition looks as in Kafka's tools."""
    assert f"{TopicPartition('words', 3)}" == "words-3"


def test_users_import_the_same_class() -> None:
    """All public names of the class refer to the same class."""
    assert odradek.TopicPartition is TopicPartition
    assert consumer_types.TopicPartition is TopicPartition
