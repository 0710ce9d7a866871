"""Long requests are decided in parts. The result must equal that of a single decision."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.metadata_quorum.controller import parts
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.api import api_name
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import alter_client_quotas as alter_quotas
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import alter_partition as isr
from odradek.wire.messages import alter_partition_reassignments as moving
from odradek.wire.messages import alter_user_scram_credentials as alter_users
from odradek.wire.messages import assign_replicas_to_dirs as assigning
from odradek.wire.messages import create_acls
from odradek.wire.messages import create_partitions as growing
from odradek.wire.messages import create_topics as creating
from odradek.wire.messages import delete_topics as deleting
from odradek.wire.messages import elect_leaders as electing
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.metadata_records import (
    BrokerEndpoint,
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tests.quorum.controller.controller_script import InstantLog

BROKERS = 3
TOPICS = 4
PARTITIONS = 3
DIRECTORIES = {broker: [bytes([broker]) * 16, bytes([broker + 50]) * 16] for broker in range(1, BROKERS + 1)}


def topic_id(number: int) -> bytes:
    return bytes(15) + bytes([number + 1])


def small_cluster() -> MetadataImage:
    """Make topics t0, t1 and so on. Every second partition has another leader than the preferred one."""
    builder = ImageBuilder(MetadataImage.empty("c"))
    records: list[Any] = [
        RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=broker,
            incarnation_id=bytes([broker]) * 16,
            fenced=False,
            log_dirs=directories,
            end_points=[BrokerEndpoint("PLAINTEXT", f"h{broker}", 9092, 0)],
        )
        for broker, directories in DIRECTORIES.items()
    ]
    for topic in range(TOPICS):
        records.append(TopicRecord(f"t{topic}", topic_id(topic)))
        for number in range(PARTITIONS):
            records.append(
                PartitionRecord(
                    partition_id=number,
                    topic_id=topic_id(topic),
                    replicas=[1, 2],
                    isr=[1, 2],
                    leader=1 + number % 2,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=[DIRECTORIES[1][0], DIRECTORIES[2][0]],
                )
            )
    for offset, record in enumerate(records):
        builder.replay(offset, record)
    image, _ = builder.build()
    return image


SMALL = small_cluster()


class Cluster:
    """A controller with an image, and a log that commits at once."""

    def __init__(self, image: MetadataImage = SMALL) -> None:
        self.controller = Controller(ControllerSettings(has_authorizer=True))
        log = InstantLog()
        log.append_batch([NoOpRecord()] * (image.offset + 1))
        ids = Random(3)
        self.machine = ReplicatedStateMachine(
            self.controller, log, image, random=Random(1), new_uuid=lambda: ids.randbytes(16)
        )
        self.log = log

    def decide(self, request: Any) -> Any:
        deferred = self.machine.submit(request, 0)
        self.log.commit()
        return deferred.response

    def decide_in_parts(self, request: Any, weight_max: int = parts.PART_WEIGHT_MAX) -> Any:
        """Decide a request in parts, as a node does. Return None if the request is short."""
        long = self.controller.long_request(self.machine.state, request, weight_max)
        if long is None:
            return None
        try:
            split = long.split()
        except KafkaError as error:
            return long.refuse(error)
        if sum(self.decide(trial) for trial in split.trials) > RECORDS_PER_REQUEST_MAX:
            return long.refuse(KafkaError(ErrorCode.POLICY_VIOLATION))
        return split.join([self.decide(each) for each in split.requests])

    @property
    def contents(self) -> dict[str, Any]:
        """The contents of the metadata, without ids, offsets and the random placement of new partitions."""
        image: MetadataImage = self.machine.state
        kept = {topic_id(number) for number in range(TOPICS)}
        return {
            "topics": {
                name: topic.partitions if topic.topic_id in kept else len(topic.partitions)
                for name, topic in image.topics.items()
            },
            "configs": dict(image.configs.items()),
            "acls": set(image.access.acl_ids),
            "credentials": dict(image.access.scram_credentials.items()),
            "quotas": dict(image.access.client_quotas.items()),
        }


names = st.sampled_from(
    [*(f"t{number}" for number in range(TOPICS)), "new", "New", "other", "", "__cluster_metadata"]
)
ids = st.sampled_from([*(topic_id(number) for number in range(TOPICS)), bytes(16), b"x" * 16])
numbers = st.integers(0, PARTITIONS)
users = st.sampled_from(["alice", "bob", ""])
brokers = st.lists(st.integers(1, BROKERS + 1), max_size=3)


def lists(each: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(each, min_size=2, max_size=12)


new_topics = st.builds(
    creating.CreatableTopic,
    names,
    st.integers(-1, 2),
    st.just(1),
    st.just([]),
    st.lists(
        st.sampled_from(
            [creating.CreatableTopicConfig("retention.ms", "7"), creating.CreatableTopicConfig("x", "y")]
        ),
        max_size=2,
    ),
)
values = st.sampled_from([("retention.ms", "9"), ("min.insync.replicas", "2"), ("unknown", "1")])
kinds = st.sampled_from([2, 32, 4, 77])
REQUESTS: dict[str, st.SearchStrategy[Any]] = {
    "CreateTopics": st.builds(creating.CreateTopicsRequest, lists(new_topics), st.just(1000), st.booleans()),
    "CreatePartitions": st.builds(
        growing.CreatePartitionsRequest,
        lists(st.builds(growing.CreatePartitionsTopic, names, st.integers(2, 6), st.none())),
        st.just(1000),
        st.booleans(),
    ),
    "DeleteTopics": st.builds(
        deleting.DeleteTopicsRequest,
        lists(
            st.builds(deleting.DeleteTopicState, names, st.just(bytes(16)))
            | st.builds(deleting.DeleteTopicState, st.none() | names, ids)
        ),
        st.lists(names, max_size=3),
    ),
    "AlterConfigs": st.builds(
        absolute.AlterConfigsRequest,
        lists(
            st.builds(
                absolute.AlterConfigsResource,
                kinds,
                names,
                st.lists(st.builds(lambda pair: absolute.AlterableConfig(*pair), values), max_size=2),
            )
        ),
        st.booleans(),
    ),
    "IncrementalAlterConfigs": st.builds(
        incremental.IncrementalAlterConfigsRequest,
        lists(
            st.builds(
                incremental.AlterConfigsResource,
                kinds,
                names,
                st.lists(
                    st.builds(lambda pair: incremental.AlterableConfig(pair[0], 0, pair[1]), values),
                    max_size=2,
                ),
            )
        ),
        st.booleans(),
    ),
    "ElectLeaders": st.builds(
        electing.ElectLeadersRequest,
        st.integers(0, 2),
        st.none() | lists(st.builds(electing.TopicPartitions, names, st.lists(numbers, max_size=4))),
    ),
    "AlterPartitionReassignments": st.builds(
        moving.AlterPartitionReassignmentsRequest,
        st.just(1000),
        st.booleans(),
        lists(
            st.builds(
                moving.ReassignableTopic,
                names,
                st.lists(st.builds(moving.ReassignablePartition, numbers, st.none() | brokers), max_size=4),
            )
        ),
    ),
    "AlterPartition": st.builds(
        isr.AlterPartitionRequest,
        st.just(1),
        st.integers(1, 2),
        lists(
            st.builds(
                isr.AlterPartitionRequestTopicData,
                ids,
                st.lists(
                    st.builds(
                        lambda number, members, epoch: isr.AlterPartitionRequestPartitionData(
                            number, 0, [], [isr.BrokerState(each, each) for each in members], 0, epoch
                        ),
                        numbers,
                        brokers,
                        st.integers(0, 1),
                    ),
                    max_size=4,
                ),
            )
        ),
    ),
    "AssignReplicasToDirs": st.builds(
        assigning.AssignReplicasToDirsRequest,
        st.just(1),
        st.integers(1, 2),
        lists(
            st.builds(
                assigning.AssignReplicasToDirsRequestDirectoryData,
                st.sampled_from([*DIRECTORIES[1], b"d" * 16]),
                st.lists(
                    st.builds(
                        assigning.AssignReplicasToDirsRequestTopicData,
                        ids,
                        st.lists(
                            st.builds(assigning.AssignReplicasToDirsRequestPartitionData, numbers), max_size=3
                        ),
                    ),
                    max_size=3,
                ),
            )
        ),
    ),
    "CreateAcls": st.builds(
        create_acls.CreateAclsRequest,
        lists(
            st.builds(
                create_acls.AclCreation,
                st.sampled_from([2, 3, 99]),
                names,
                st.sampled_from([3, 4]),
                st.sampled_from(["User:a", "User:b", "nobody"]),
                st.just("*"),
                st.sampled_from([3, 4]),
                st.just(3),
            )
        ),
    ),
    "AlterUserScramCredentials": st.builds(
        alter_users.AlterUserScramCredentialsRequest,
        st.lists(st.builds(alter_users.ScramCredentialDeletion, users, st.integers(0, 2)), max_size=6),
        lists(
            st.builds(
                alter_users.ScramCredentialUpsertion,
                users,
                st.integers(0, 2),
                st.sampled_from([1, 4096]),
                st.just(b"s" * 16),
                st.just(b"p" * 32),
            )
        ),
    ),
    "AlterClientQuotas": st.builds(
        alter_quotas.AlterClientQuotasRequest,
        lists(
            st.builds(
                alter_quotas.AlterClientQuotasRequestEntryData,
                st.permutations(["user", "client-id"]).flatmap(
                    lambda kinds: st.builds(
                        lambda some: [
                            alter_quotas.EntityData(*each) for each in zip(kinds, some, strict=False)
                        ],
                        st.lists(st.none() | users, max_size=2),
                    )
                ),
                st.lists(
                    st.builds(
                        alter_quotas.OpData,
                        st.sampled_from(["producer_byte_rate", "consumer_byte_rate", "x"]),
                        st.sampled_from([1.0, 2.0, -1.0]),
                        st.booleans(),
                    ),
                    max_size=3,
                ),
            )
        ),
        st.booleans(),
    ),
}


def told(response: Any) -> Any:
    """Remove the random parts of a response.

    These are ids of new topics, and the order of results where Kafka leaves it open.
    """
    if isinstance(response, creating.CreateTopicsResponse):
        return sorted(
            (each.name, each.error_code, each.error_message, each.num_partitions) for each in response.topics
        )
    if isinstance(response, growing.CreatePartitionsResponse):
        return sorted((each.name, each.error_code, each.error_message or "") for each in response.results)
    if isinstance(response, deleting.DeleteTopicsResponse):
        return sorted(
            (each.name or "", each.topic_id, each.error_code, each.error_message or "")
            for each in response.responses
        )
    return response


def test_every_request_that_is_divided_is_tried() -> None:
    """The property below is tested for every API whose requests are divided."""
    tried = [api_key for api_key in parts._KINDS if api_name(api_key) in REQUESTS]
    assert tried == list(parts._KINDS)
    assert len(REQUESTS) == len(tried)


@pytest.mark.parametrize("name", REQUESTS)
@given(data=st.data())
def test_parts_joined_are_the_whole(name: str, data: st.DataObject) -> None:
    """A request is decided in parts.

    Answer and state equal those of one decision, even with duplicates or a refusal of everything.
    """
    request = data.draw(REQUESTS[name])
    whole, parted = Cluster(), Cluster()
    joined = parted.decide_in_parts(request, data.draw(st.integers(0, 6)))
    if joined is not None:
        assert told(joined) == told(whole.decide(request))
        assert parted.contents == whole.contents


def is_cut(request: Any) -> int:
    """Return the number of parts of a request, or 0 if it is short."""
    cluster = Cluster()
    long = cluster.controller.long_request(cluster.machine.state, request, parts.PART_WEIGHT_MAX)
    return 0 if long is None else len(long.split().requests)


def new_topics_named(names: Sequence[str], partitions: int = 1, configs: Any = ()) -> Any:
    topics = [creating.CreatableTopic(name, partitions, 1, [], list(configs)) for name in names]
    return creating.CreateTopicsRequest(topics, 1000, False)


def test_what_is_short_is_decided_at_once() -> None:
    """A request for 100 topics is short, and is decided at once. A request for 1000 topics is divided."""
    assert is_cut(new_topics_named([f"n{number}" for number in range(100)])) == 0
    assert is_cut(new_topics_named([f"n{number}" for number in range(1000)])) > 4


@pytest.mark.parametrize(
    "request_",
    [
        new_topics_named([f"n{number}" for number in range(3000)]),
        deleting.DeleteTopicsRequest([deleting.DeleteTopicState(f"n{number}") for number in range(3000)]),
        isr.AlterPartitionRequest(
            1,
            1,
            [
                isr.AlterPartitionRequestTopicData(
                    topic_id(0), [isr.AlterPartitionRequestPartitionData(number) for number in range(3000)]
                )
            ],
        ),
    ],
    ids=["topics", "names", "partitions of one topic"],
)
def test_no_part_holds_more_than_its_share(request_: Any) -> None:
    """No part exceeds its share of work. Topics are divided among parts, and so are the partitions of one topic."""
    long = Cluster().controller.long_request(SMALL, request_, parts.PART_WEIGHT_MAX)
    assert long is not None
    for part in long.split().requests:
        weight = sum(
            1 + (len(each.partitions) if hasattr(each, "partitions") else getattr(each, "num_partitions", 0))
            for each in part.topics  # type: ignore[attr-defined]
        )
        assert weight <= parts.PART_WEIGHT_MAX + 1


KEYS = [creating.CreatableTopicConfig(key, "1") for key in ("retention.ms", "segment.ms", "flush.ms")]


@pytest.mark.parametrize("validate_only", [False, True])
def test_what_would_write_too_much_writes_nothing(validate_only: bool) -> None:
    """A long request would write too many records in all of its parts together.

    It is refused, and nothing is written.
    """
    cluster = Cluster()
    names = [f"n{number}" for number in range(2001)]
    request = attrs.evolve(new_topics_named(names, 1, KEYS), validate_only=validate_only)
    response = cluster.decide_in_parts(request)
    assert [each.error_code for each in response.topics] == [ErrorCode.POLICY_VIOLATION] * 2001
    assert len(cluster.machine.state.topics) == TOPICS


def test_what_is_refused_does_not_count_as_written() -> None:
    """Topics that exist already are refused, and do not count towards the limit of records.

    New topics may reach the limit exactly.
    """
    cluster = Cluster()
    names = [f"n{number}" for number in range(2000)]
    request = new_topics_named([*names, *(f"t{number}" for number in range(TOPICS))], 1, KEYS)
    response = cluster.decide_in_parts(request)
    codes = {each.name: each.error_code for each in response.topics}
    assert {codes[name] for name in names} == {ErrorCode.NONE}
    assert codes["t0"] == ErrorCode.TOPIC_ALREADY_EXISTS
    assert cluster.log.log_end_offset == SMALL.offset + 1 + RECORDS_PER_REQUEST_MAX


def test_a_topic_that_grows_beyond_the_limit_leaves_the_others_alone() -> None:
    """CreatePartitions refuses the topics that would exceed the limit of records. Later topics that fit are grown."""
    cluster = Cluster()
    asked = [("t0", 6003), ("t1", 6003), ("t2", 4003), ("t3", 4)]
    topics = [growing.CreatePartitionsTopic(name, count, None) for name, count in asked]
    response = cluster.decide_in_parts(growing.CreatePartitionsRequest(topics, 1000, False))
    codes = {each.name: each.error_code for each in response.results}
    assert codes == {
        "t0": ErrorCode.NONE,
        "t1": ErrorCode.POLICY_VIOLATION,
        "t2": ErrorCode.NONE,
        "t3": ErrorCode.POLICY_VIOLATION,
    }
    assert {name: len(cluster.machine.state.topics[name].partitions) for name, _ in asked} == {
        "t0": 6003,
        "t1": 3,
        "t2": 4003,
        "t3": 3,
    }


def test_a_controller_that_is_lost_in_between_is_told_for_the_rest() -> None:
    """The controller loses its lead between two parts.

    Committed topics are answered, and the other topics get NOT_CONTROLLER.
    """
    cluster = Cluster()
    request = new_topics_named([f"n{number}" for number in range(1000)])
    long = cluster.controller.long_request(cluster.machine.state, request, parts.PART_WEIGHT_MAX)
    assert long is not None
    split = long.split()
    answers = [cluster.decide(split.requests[0])]
    cluster.machine.resign()
    answers += [cluster.decide(each) for each in split.requests[1:]]
    first = {topic.name for topic in split.requests[0].topics}  # type: ignore[attr-defined]
    response = split.join(answers)
    assert len(response.topics) == 1000
    assert {each.name for each in response.topics if each.error_code == ErrorCode.NONE} == first
    assert {each.error_code for each in response.topics} == {ErrorCode.NONE, ErrorCode.NOT_CONTROLLER}
