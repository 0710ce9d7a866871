"""The limit on the number of things that one request of an administrator may contain."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from odradek.metadata_quorum.config.config_resources import Operation
from odradek.metadata_quorum.controller.configs import combine_items
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.limits import NAMED_PER_REQUEST_MAX, RECORDS_PER_REQUEST_MAX
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.errors import ErrorCode
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import create_partitions as growing
from odradek.wire.messages import create_topics as creating
from odradek.wire.messages import delete_topics as deleting
from odradek.wire.messages import elect_leaders as electing
from odradek.wire.messages import incremental_alter_configs as incremental
from tests.quorum.controller.controller_script import InstantLog

BEYOND = NAMED_PER_REQUEST_MAX + 1
NAMES = [f"n{number}" for number in range(BEYOND)]


def decided(request: Any) -> Any:
    log = InstantLog()
    machine = ReplicatedStateMachine(
        Controller(ControllerSettings()),
        log,
        MetadataImage.empty("c"),
        random=Random(1),
        new_uuid=lambda: bytes(16),
    )
    deferred = machine.submit(request, 0)
    log.commit()
    return deferred.response


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (creating.CreateTopicsRequest([creating.CreatableTopic(name, 1, 1) for name in NAMES]), "topics"),
        (
            creating.CreateTopicsRequest(
                [creating.CreatableTopic("t", 1, 1, [], [creating.CreatableTopicConfig("k", "v")] * BEYOND)]
            ),
            "topics",
        ),
        (deleting.DeleteTopicsRequest([deleting.DeleteTopicState(name) for name in NAMES]), "responses"),
        (
            growing.CreatePartitionsRequest([growing.CreatePartitionsTopic(name, 5) for name in NAMES]),
            "results",
        ),
        (
            absolute.AlterConfigsRequest([absolute.AlterConfigsResource(2, name) for name in NAMES]),
            "responses",
        ),
        (
            incremental.IncrementalAlterConfigsRequest(
                [incremental.AlterConfigsResource(2, name) for name in NAMES]
            ),
            "responses",
        ),
    ],
)
def test_what_names_too_much_is_refused_as_a_whole(request_: Any, field: str) -> None:
    """A request above the limit is refused as a whole. Everything in it gets POLICY_VIOLATION, before other checks."""
    results = getattr(decided(request_), field)
    assert {each.error_code for each in results} == {ErrorCode.POLICY_VIOLATION}


def test_partitions_of_one_topic_count() -> None:
    """Each partition number in a list under one topic counts towards the limit."""
    request = electing.ElectLeadersRequest(0, [electing.TopicPartitions("t", list(range(BEYOND)))], 1000)
    assert decided(request).error_code == ErrorCode.POLICY_VIOLATION


def test_as_much_as_a_decision_may_write_is_not_too_much() -> None:
    """A request that is exactly at the limit of records is accepted. Replicas do not count separately."""
    assignments = [
        creating.CreatableReplicaAssignment(number, [1, 2, 3]) for number in range(RECORDS_PER_REQUEST_MAX)
    ]
    request = creating.CreateTopicsRequest([creating.CreatableTopic("t", -1, -1, assignments)])
    (topic,) = decided(request).topics
    assert topic.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_lists_are_combined_item_by_item() -> None:
    """Appending to a list adds only missing items, once and in order.

    Subtracting removes one item of the list for each given item.
    """
    assert combine_items(Operation.APPEND, "a,b,a", "c,b,c,d") == ["a", "b", "a", "c", "d"]
    assert combine_items(Operation.SUBTRACT, "a,b,a,c", "a,c,x") == ["b", "a"]
