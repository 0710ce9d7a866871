"""Reports about replicas without a leader: new ones go first, all are repeated, and only controllers that understand
reports get them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication import leaderless_replicas
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.leaderless_replicas import LeaderlessReplicas
from odradek.metadata_quorum.features import REPLICA_LOG_INFO
from odradek.metadata_quorum.image.metadata_image import (
    ControllerImage,
    FeatureRange,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.serving.layered_map import LayeredMap

ME = 2
TOPIC_ID = b"t" * 16
WAITING = PartitionImage(-1, 7, 9, (1, 2, 3), (), last_known_elr=(1, 2))


class Case:
    """A broker with replicas of one topic, each with a log of another length."""

    def __init__(self, partitions: dict[int, PartitionImage], *, knows: bool = True) -> None:
        self.controller = SimpleNamespace(leader_epoch=1)
        features = (FeatureRange(REPLICA_LOG_INFO, 0, 1),) if knows else ()
        self.newest = NewestImage(MetadataImage(controllers={9: ControllerImage(9, bytes(16), (), features)}))
        hosted = SimpleNamespace(partition=lambda _, number: self.hosted.get(number))
        self.hosted: dict[int, Any] = {}
        self.leaderless = LeaderlessReplicas(ME, self.newest, cast("HostedTopics", hosted), self.controller)
        self.show(partitions)

    def show(self, partitions: dict[int, PartitionImage]) -> None:
        """Put these partitions into the broker's image and host their logs."""
        topic = TopicImage("t", TOPIC_ID, partitions)
        image = attrs.evolve(self.newest.image, topics=LayeredMap({"t": topic}))
        self.newest.image = image
        for number, partition in partitions.items():
            log = SimpleNamespace(
                log_end_offset=10 + number,
                offline=False,
                epochs=SimpleNamespace(last_written=lambda end_offset: (end_offset - 1) // 10),
            )
            self.hosted[number] = SimpleNamespace(
                log=log, image=partition, leader_epoch=partition.leader_epoch
            )
        self.leaderless.follow(image, MetadataDelta(changed_topics={"t": tuple(partitions)}))

    def reported(self) -> list[int]:
        """Return the partitions in the next heartbeat's reports, and confirm that the controller got them."""
        numbers = [
            info.partition for topic in self.leaderless.next_reports() for info in topic.partition_log_info
        ]
        self.leaderless.were_heard()
        return numbers


def test_a_report_says_how_far_the_log_reaches() -> None:
    """A report has the epoch of the last record, the partition's leader epoch and the log end offset."""
    case = Case({0: WAITING})
    ((topic,),) = [case.leaderless.next_reports()]
    (info,) = topic.partition_log_info
    assert topic.topic_id == TOPIC_ID
    assert (info.partition, info.last_written_leader_epoch, info.current_leader_epoch) == (0, 0, 7)
    assert (info.log_end_offset, info.error_code) == (10, 0)


def test_only_partitions_that_wait_are_reported() -> None:
    """A partition with a leader, with other replicas, or with members in the ISR or ELR is not reported."""
    case = Case(
        {
            0: WAITING,
            1: attrs.evolve(WAITING, leader=3, isr=(3,)),
            2: attrs.evolve(WAITING, isr=(3,)),
            3: attrs.evolve(WAITING, elr=(3,)),
            4: attrs.evolve(WAITING, replicas=(1, 3)),
        }
    )
    assert case.reported() == [0]
    case.show({0: attrs.evolve(WAITING, leader=1, isr=(1,), leader_epoch=8)})
    assert case.reported() == []


def test_new_reports_are_urgent_and_old_ones_come_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each heartbeat has a bounded number of reports, new ones first. Those of a lost heartbeat are sent again."""
    monkeypatch.setattr(leaderless_replicas, "REPORTS_PER_HEARTBEAT_MAX", 2)
    case = Case(dict.fromkeys(range(5), WAITING))
    assert case.leaderless.is_urgent
    assert len(case.leaderless.next_reports()[0].partition_log_info) == 2
    first = [case.reported() for _ in range(3)]
    assert sorted(number for numbers in first for number in numbers) == list(range(5))
    assert not case.leaderless.is_urgent
    assert sorted({number for _ in range(3) for number in case.reported()}) == list(range(5))


def test_a_new_controller_hears_everything_at_once() -> None:
    """A new controller gets all reports at once, since it does not know those of the last one."""
    case = Case(dict.fromkeys(range(3), WAITING))
    case.reported()
    assert not case.leaderless.is_urgent
    case.controller.leader_epoch = 2
    assert case.reported() == [0, 1, 2]


def test_controllers_that_do_not_know_of_it_hear_nothing() -> None:
    """The broker sends no reports to a controller that would ignore them, such as Apache Kafka's."""
    case = Case({0: WAITING}, knows=False)
    assert case.reported() == []
    assert not case.leaderless.is_urgent


def test_a_log_that_cannot_be_read_is_left_out() -> None:
    """A log whose directory has failed, or that is not open yet, is left out of the reports."""
    case = Case(dict.fromkeys(range(3), WAITING))
    case.hosted[0].log.offline = True
    del case.hosted[1]
    assert case.reported() == [2]
