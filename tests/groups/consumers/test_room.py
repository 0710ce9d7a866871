"""The memory limit for consumer groups of one partition: texts of members, and topics that match their patterns."""

from __future__ import annotations

import pytest

from odradek.data_plane.groups.consumers.consumer_group import (
    BYTES_PER_WEIGHT,
    WEIGHT_OF_PATTERN,
    Profile,
    weight_of_member,
)
from tests.groups.consumers.consumer_script import ConsumerScript

GROUP = "g"


def started(room: int, topics: str) -> ConsumerScript:
    script = ConsumerScript()
    script.run(f"settings consumer_members_per_partition_max={room}")
    script.run(f"topics {topics}")
    return script


@pytest.mark.parametrize("field", ["instance_id", "rack_id", "client_id", "pattern"])
def test_each_text_of_a_member_takes_room(field: str) -> None:
    """A member with 30 KB in any of its texts takes as much room as 31 members without long texts."""
    assert weight_of_member("m", Profile()) == 1
    assert weight_of_member("m", Profile(**{field: "x" * 30 * BYTES_PER_WEIGHT})) == 31


def test_names_of_topics_take_room() -> None:
    """The names in a subscription take room, even if they are short: each of them is an entry in several tables."""
    names = tuple(f"t{number}" for number in range(10_000))
    assert weight_of_member("m", Profile(topics=names)) > 500


def test_a_member_that_reports_too_much_is_refused_and_the_others_go_on() -> None:
    """A member whose new subscription is too large is refused, keeps its old one, and the other members go on."""
    script = started(4, "t=2")
    script.run("beat A topics=t")
    assert script.run("beat B topics=t")[-1].startswith("B beat: epoch")
    refused = script.run(f"beat A topics={'x' * 4 * BYTES_PER_WEIGHT}")
    assert refused == ["A beat: GROUP_MAX_SIZE_REACHED"]
    group = script.runtime.state.consumers[GROUP]
    assert list(group.topic_counts) == ["t"]
    assert group.weight == script.runtime.state.consumer_weight == 2
    script.run("beat A topics=t")
    assert script.run("beat C topics=t")[-1].startswith("C beat: epoch")


def test_a_pattern_whose_topics_have_no_room_matches_none() -> None:
    """If a second pattern matches more topics than the limit allows, it matches none."""
    topics = " ".join(f"t{number:0>14}=1" for number in range(100))
    of_topics = 100 * (15 + 64) // BYTES_PER_WEIGHT
    script = started(2 * (1 + WEIGHT_OF_PATTERN) + of_topics, topics)
    script.run("beat A pattern=t.*")
    script.run("resolve")
    script.run("wait 11000")
    script.run("beat B pattern=t.+")
    script.run("resolve")
    group = script.runtime.state.consumers[GROUP]
    found = {pattern: len(resolved.topics) for pattern, resolved in group.resolved.items()}
    assert sorted(found.values()) == [0, 100]
    assert script.runtime.state.consumer_weight == group.weight == 2 * (1 + WEIGHT_OF_PATTERN) + of_topics
