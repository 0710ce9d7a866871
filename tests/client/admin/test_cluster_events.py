"""The metadata log as English sentences: a test writes records, and checks the sentences that users will read."""

from __future__ import annotations

import json

from odradek.operations.cluster_events import Event, Narrator
from odradek.operations.event_authors import EventAuthors
from odradek.wire.messages.control_records import (
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
    VotersRecordVoter,
)
from odradek.wire.messages.metadata_records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EntityData,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from odradek.wire.structure import Message

TOPIC_ID = bytes(15) + b"\x07"


class Log:
    """A metadata log whose batches are ten seconds apart."""

    def __init__(self) -> None:
        self.narrator = Narrator()
        self.offset = 0
        self.time_ms = 1_000_000
        for node in (1, 2, 3):
            endpoint = BrokerEndpoint("PLAINTEXT", f"host{node}", 9092, 0)
            self.tell(RegisterBrokerRecord(broker_id=node, end_points=[endpoint], rack=None))
            self.tell(BrokerRegistrationChangeRecord(broker_id=node, fenced=-1))
        self.tell(
            TopicRecord("words", TOPIC_ID),
            *(
                PartitionRecord(
                    partition_id=index, topic_id=TOPIC_ID, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1
                )
                for index in (0, 1)
            ),
        )

    def tell(self, *records: Message) -> list[str]:
        self.time_ms += 10_000
        events = self.narrator.narrate(self.offset, 5, self.time_ms, records)
        self.offset += len(records)
        return [str(event) for event in events]


def changed(partition: int = 0, **fields: object) -> PartitionChangeRecord:
    record = PartitionChangeRecord(partition_id=partition, topic_id=TOPIC_ID)
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def test_topics_and_brokers_come_and_go() -> None:
    """The creation of a topic with all of its partitions is one sentence. So is the end of a broker."""
    log = Log()
    other = bytes(16)
    assert log.tell(
        TopicRecord("t", other), PartitionRecord(partition_id=0, topic_id=other, replicas=[1, 2], leader=1)
    ) == ["topic t was created", "topic t has 1 new partition with 2 replicas"]
    assert log.tell(RemoveTopicRecord(other)) == ["topic t was deleted"]
    assert log.tell(UnregisterBrokerRecord(3, 9)) == ["broker 3 was removed"]
    endpoint = BrokerEndpoint("PLAINTEXT", "host2", 9092, 0)
    assert log.tell(RegisterBrokerRecord(broker_id=2, end_points=[endpoint], rack="r1")) == [
        "broker 2 has started again at host2:9092 in rack r1"
    ]
    assert log.tell(NoOpRecord()) == []


def test_the_death_of_a_leader_is_the_reason_for_the_next_one() -> None:
    """A leader's death is named as the reason for the next leader.

    The batch has the leader's fencing at its end, but the sentences begin with it.
    """
    log = Log()
    assert log.tell(
        changed(leader=2, isr=[2, 3]),
        BrokerRegistrationChangeRecord(broker_id=1, fenced=1),
    ) == [
        "broker 1 is fenced: it does not answer",
        "words-0 is led by 2 instead of 1, because 1 is down (in sync: 2,3)",
    ]
    log.tell(BrokerRegistrationChangeRecord(broker_id=1, fenced=-1))
    assert log.tell(changed(isr=[2, 3, 1])) == ["words-0 has 1 in sync, in all: 1,2,3"]
    assert log.tell(changed(leader=1)) == [
        "words-0 is led by 1 instead of 2, because 1 is preferred (in sync: 1,2,3)"
    ]


def test_a_partition_without_a_leader_and_an_unclean_election() -> None:
    """The sentences name the replica that a leaderless partition waits for, and how long it had no leader.

    They say that an unclean election may lose records.
    """
    log = Log()
    log.tell(changed(isr=[1]))
    assert log.tell(
        changed(leader=-1, isr=[], eligible_leader_replicas=[1]),
        BrokerRegistrationChangeRecord(broker_id=1, fenced=1),
    )[1:] == ["words-0 has no leader: 1 is down, none in sync; it waits for 1"]
    assert log.tell(changed(leader=3, isr=[3], eligible_leader_replicas=[])) == [
        "words-0 is led again, by 3 (it had no leader for 10 seconds), in sync: 3; "
        "it was not in sync: records may be lost"
    ]


def test_a_leader_that_was_killed_and_came_back() -> None:
    """The last leader returns after an unclean stop.

    Records may be lost only if its machine went down, and the sentence says so.
    """
    log = Log()
    log.tell(
        changed(leader=-1, isr=[], eligible_leader_replicas=[1]),
        BrokerRegistrationChangeRecord(broker_id=1, fenced=1),
    )
    log.tell(changed(eligible_leader_replicas=[], last_known_elr=[1]))
    assert log.tell(changed(leader=1, isr=[1], last_known_elr=[], leader_recovery_state=1)) == [
        "words-0 is led again, by 1 (it had no leader for 20 seconds), in sync: 1; it led last and did not stop cleanly: "
        "if its machine went down, its newest records may be lost"
    ]


def test_a_last_leader_whose_disk_was_replaced() -> None:
    """The last leader returns with an empty disk.

    The partition waits for no replica, and the sentence asks the operator for a choice.
    """
    log = Log()
    log.tell(
        changed(leader=-1, isr=[], eligible_leader_replicas=[1]),
        BrokerRegistrationChangeRecord(broker_id=1, fenced=1),
    )
    assert log.tell(changed(eligible_leader_replicas=[], last_known_elr=[1])) == []
    assert log.tell(changed(last_known_elr=[])) == [
        "words-0 waits for 1 no longer: its log is gone; an operator has to choose a leader"
    ]


def test_a_controlled_shutdown_and_a_move() -> None:
    """Controlled shutdowns and moves are named as reasons, and not as failures."""
    log = Log()
    assert log.tell(
        BrokerRegistrationChangeRecord(broker_id=1, in_controlled_shutdown=1),
        changed(partition=1, leader=2, isr=[2, 3]),
    ) == [
        "broker 1 is about to stop, and hands over what it leads",
        "words-1 is led by 2 instead of 1, because 1 is stopping (in sync: 2,3)",
    ]
    assert log.tell(BrokerRegistrationChangeRecord(broker_id=1, fenced=1)) == [
        "broker 1 is fenced: it has stopped"
    ]
    log = Log()
    assert log.tell(BrokerRegistrationChangeRecord(broker_id=1, fenced=1, in_controlled_shutdown=1)) == [
        "broker 1 is fenced: it has stopped"
    ]
    log = Log()
    assert log.tell(changed(replicas=[4, 2, 3, 1], adding_replicas=[4], removing_replicas=[1])) == [
        "words-0 begins to move to 4, off 1"
    ]
    assert log.tell(
        changed(replicas=[4, 2, 3], isr=[2, 3, 4], leader=4, adding_replicas=[], removing_replicas=[])
    ) == [
        "words-0 has moved: it is on 4,2,3",
        "words-0 is led by 4 instead of 1, because 1 has no replica any longer (in sync: 2,3,4)",
    ]


def test_the_quorum_and_configurations() -> None:
    """The sentences report the quorum's leader with its votes, changes of the voters, and changes of configurations."""
    log = Log()
    one = LeaderChangeMessage(leader_id=1, granting_voters=[LeaderChangeMessageVoter(1)])
    assert log.tell(one) == ["controller 1 leads the quorum in epoch 5, by the votes of 1"]
    assert log.tell(LeaderChangeMessage(leader_id=2)) == [
        "controller 2 leads the quorum in epoch 5; controller 1 had led for 10 seconds"
    ]
    log.tell(VotersRecord(voters=[VotersRecordVoter(1), VotersRecordVoter(2)]))
    assert log.tell(VotersRecord(voters=[VotersRecordVoter(2), VotersRecordVoter(3)])) == [
        "the quorum has the voters 2,3: 3 has got a vote, 1 has lost its vote"
    ]
    assert log.tell(ConfigRecord(2, "words", "retention.ms", "5")) == ["topic words has retention.ms=5"]
    assert log.tell(ConfigRecord(4, "", "log.retention.ms", None)) == [
        "every broker has the default of log.retention.ms again"
    ]


def test_a_snapshot_is_known_but_not_told() -> None:
    """A snapshot gives names and leaders, but no events. Events begin after it."""
    narrator = Narrator()
    partition = PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1, 2], isr=[1, 2], leader=1)
    narrator.load([TopicRecord("words", TOPIC_ID), partition])
    (event,) = narrator.narrate(9, 1, 5, [changed(leader=2)])
    assert (event.offset, event.subject, event.kind) == (9, "words-0", "leader")


def test_names_outlive_their_topics() -> None:
    """The name of a deleted topic is remembered, so that questions about this topic still find its events."""
    named: set[str] = set()
    narrator = Narrator(named)
    narrator.load([TopicRecord("words", TOPIC_ID)])
    narrator.narrate(9, 1, 5, [RemoveTopicRecord(TOPIC_ID)])
    assert named == {"words"}


def test_a_disk_in_trouble_is_a_reason() -> None:
    """A broker reports a full disk and loses its leaderships. The sentence names the disk as the reason."""
    log = Log()
    listed = "AAAAAAAAAAAAAAAAAAAAAA:full:1700000000000:/data"
    told = log.tell(
        ConfigRecord(4, "1", "odradek.troubled.log.dirs", listed), changed(leader=2), changed(1, leader=3)
    )
    assert told[0].endswith("broker 1 says that /data is full")
    assert all("of 1 /data is full" in line for line in told[1:])
    (line,) = log.tell(ConfigRecord(4, "1", "odradek.troubled.log.dirs", None))
    assert line.endswith("broker 1 says that its disks are well again")


def test_users_and_rights_come_and_go() -> None:
    """Changes of users, ACLs, tokens and quotas become plain sentences, which never contain a user's keys."""
    log = Log()
    assert log.tell(UserScramCredentialRecord("alice", 2, b"salt", b"stored", b"server", 4096)) == [
        "user alice has a password for SCRAM-SHA-512"
    ]
    assert log.tell(RemoveUserScramCredentialRecord("alice", 2)) == [
        "user alice has no password for SCRAM-SHA-512 any longer"
    ]
    ids = [bytes([number]) * 16 for number in range(4)]
    rules = (
        AccessControlEntryRecord(ids[0], 2, "t", 3, "User:a", "*", 4, 3),
        AccessControlEntryRecord(ids[1], 3, "g-", 4, "User:a", "10.0.0.1", 3, 2),
        AccessControlEntryRecord(ids[2], 4, "kafka-cluster", 3, "User:b", "*", 2, 3),
        AccessControlEntryRecord(ids[3], 5, "*", 3, "User:b", "*", 77, 3),
    )
    assert log.tell(*rules) == [
        "principal User:a now may WRITE on topic t",
        "principal User:a now may not READ on every group whose name begins with g-, from 10.0.0.1",
        "principal User:b now may ALL on the cluster",
        "principal User:b now may Operation 77 on every transactional id",
    ]
    assert log.tell(RemoveAccessControlEntryRecord(ids[1]), RemoveAccessControlEntryRecord(bytes(16))) == [
        "principal User:a has lost the rule: may not READ on every group whose name begins with g-, from 10.0.0.1",
        "principal User:a has lost the rule: may WRITE on topic t",
    ]
    token = DelegationTokenRecord(owner="User:a", requester="User:b", token_id="T")
    assert log.tell(token, RemoveDelegationTokenRecord("T")) == [
        "delegation token T of User:a is valid",
        "delegation token T is gone",
    ]
    quota = ClientQuotaRecord(
        [EntityData("user", "a"), EntityData("client-id", None)], "producer_byte_rate", 1e6
    )
    assert log.tell(quota) == ["user a, client-id (default) has producer_byte_rate=1e+06"]


def test_a_secret_of_a_configuration_is_hidden() -> None:
    """The sentences hide secret values.

    Kafka's log contains passwords of dynamic configurations in plain text (KIP-226).
    """
    log = Log()
    assert log.tell(ConfigRecord(4, "1", "listener.name.x.ssl.keystore.password", "open sesame")) == [
        "broker 1 has listener.name.x.ssl.keystore.password=[hidden]"
    ]


def change(epoch: int, first: int, last: int, principal: str = "User:a") -> bytes:
    """Make a line of an audit log."""
    fields = {"principal": principal, "address": "10.0.0.1", "client_id": "c", "api": "CreateTopics"}
    offsets = {"epoch": epoch, "first_offset": first, "last_offset": last}
    return json.dumps({"event": "metadata.changed", **fields, **offsets}).encode()


def event(epoch: int, offset: int, *, by_quorum: bool = False) -> Event:
    """Make the event of a record at this place in the metadata log."""
    return Event(offset, 0, "topic", "topic t", "was created", epoch, by_quorum)


def test_an_author_is_found_by_epoch_and_offset() -> None:
    """An event's author is found by epoch and offset.

    The same offset in another epoch belongs to a controller that was deposed.
    """
    authors = EventAuthors()
    authors.read(
        [change(3, 10, 12), b'{"event": "denied"}', change(4, 11, 11, "User:b"), change(3, 5, 5, "User:c")]
    )
    found = [authors.author(event(*place)) for place in ((3, 10), (3, 12), (3, 5), (4, 11))]
    assert [each and each.principal for each in found] == ["User:a", "User:a", "User:c", "User:b"]
    assert [authors.author(event(*place)) for place in ((3, 13), (3, 6), (3, 4), (4, 10), (5, 10))] == [
        None
    ] * 5
    assert str(found[0]) == "User:a at 10.0.0.1, CreateTopics"


def test_gaps_say_whose_file_is_missing() -> None:
    """For events without an author, the report says which controller's audit file is missing, or that lines are gone.

    Elections need no author.
    """
    authors = EventAuthors()
    authors.read([change(3, 10, 12), b'{"event": "lines.missing", "count": 4}', b'"metadata.changed" {'])
    told = authors.gaps(
        [event(2, 1), event(2, 2), event(3, 9, by_quorum=True), event(3, 11), event(3, 13), event(6, 20)],
        {2: 7, 3: 1},
    )
    assert told == [
        "2 events in epoch 2 (the given files have no line of controller 7)",
        "1 event in epoch 3 (the lines of controller 1 up to offset 13 were rotated away or never written)",
        "1 event in epoch 6 (the given files have no line of another controller)",
    ]
    assert (authors.missing, authors.unreadable) == (4, 1)


def test_the_first_voters_have_no_author() -> None:
    """The records of the first voters have no author: the first leader copies them from the formatted log."""
    narrator = Narrator()
    voters = VotersRecord(voters=[VotersRecordVoter(1)])
    (first,) = narrator.narrate(0, 1, 0, [voters])
    (second,) = narrator.narrate(1, 1, 0, [voters])
    assert (first.by_quorum, second.by_quorum) == (True, False)
