"""Readable scripts for the group coordinator: a command, `----`, its records and answers, an empty line.

Commands (times in milliseconds; clients have names in capitals, groups are called `g` unless said otherwise):

    settings KEY=VALUE...                 before the first request (fields of `GroupSettings`)
    join NAME [instance=I] [protocols=P:METADATA,...] [session=MS] [rebalance=MS] [version=N] [type=T] [group=G] [new]
    sync NAME [NAME:ASSIGNMENT...] [generation=N] [instance=I]
    heartbeat NAME [generation=N] [instance=I]
    leave NAME|instance:I...
    commit NAME|- TOPIC-PARTITION=OFFSET... [generation=N] [group=G] [metadata=TEXT] [retention=MS]
    offsets [GROUP]                       what an OffsetFetch returns
    delete-offsets GROUP TOPIC-PARTITION...
    forget TOPIC...                       topics were deleted
    expire                                the check of `offsets.retention.check.interval.ms`
    describe [GROUP], list, delete GROUP
    wait MS                               time passes, and due events happen in order
    hold, release                         the high watermark stops, and moves again
    takeover                              another coordinator begins with the committed records

A client joins with its last member id, unless `new` is given. `A1` is the first id of client A. The output has the
records of decisions, then `NAME request: answer` for each client that gets an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import DeleteGroup, DescribeGroup, ListGroups
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    ExpireOffsets,
    FetchedOffsets,
    FetchOffsets,
    ForgetTopics,
    PartitionCommit,
)
from odradek.data_plane.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.data_plane.groups.state import GroupsState, state_of
from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.data_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from odradek.wire.messages.describe_groups import DescribedGroup
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from odradek.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from testkit.coordinating import WALL_MS, HeldLog, ScriptedCoordinator


def read_groups(latest: Latest) -> GroupsState:
    """Return the state that a new coordinator restores from these records."""
    return state_of(latest, [])


class Told:
    """A reply that writes its answer into the output."""

    def __init__(self, script: GroupScript, label: str) -> None:
        self._script = script
        self._label = label

    def complete(self, response: Any) -> None:
        name, _, what = self._label.partition(" ")
        self._script.heard(name, response)
        self._script.lines.append(f"{name} {what}: {self._script.tell(response)}")


class GroupScript(ScriptedCoordinator[GroupsState, None]):
    """Runs the commands of one script against one coordinator."""

    def __init__(self) -> None:
        super().__init__(HeldLog(read_groups))
        self._leads = False
        self._settings = GroupSettings(session_timeout_ms_min=100)
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._uuids = 0

    def _new_uuid(self) -> bytes:
        self._uuids += 1
        return self._uuids.to_bytes(16, "big")

    def _lead(self, state: GroupsState) -> None:
        machine = self.new_machine(self._settings)
        machine.restore(state, self.now_ms, self._new_uuid)
        self.lead(machine, machine.deadlines, state, self._new_uuid)
        self._leads = True

    def new_machine(self, settings: GroupSettings) -> GroupMachine:
        """Make the state machine of a new coordinator."""
        return GroupMachine(settings)

    def ask(self, label: str, request: Any, version: int, *, client_id: str = "") -> None:
        if not self._leads:
            self._lead(GroupsState())
        self.submit(request, version, Told(self, label) if label else None, client_id, "/host")

    def heard(self, name: str, response: Any) -> None:
        """Remember the member id and the generation of a JoinGroup answer, as a client does."""
        if isinstance(response, JoinGroupResponse) and response.error_code in (
            ErrorCode.NONE,
            ErrorCode.MEMBER_ID_REQUIRED,
        ):
            if response.member_id not in self._names:
                self._given[name] = self._given.get(name, 0) + 1
                self._names[response.member_id] = f"{name}{self._given[name]}"
            self._ids[name] = response.member_id
            if not response.error_code:
                self._generations[name] = response.generation_id

    def _id(self, name: str) -> str:
        if name in self._ids:
            return self._ids[name]
        return next((member_id for member_id, known in self._names.items() if known == name), "")

    # -- commands -----------------------------------------------------------------------------------------------

    def run(self, command: str) -> list[str]:
        verb, *words = command.split()
        self.lines = []
        getattr(self, f"do_{verb.replace('-', '_')}")(words)
        return self.lines

    def do_settings(self, words: list[str]) -> None:
        options = {key: int(value) for key, value in _options(words).items()}
        self._settings = attrs.evolve(self._settings, **options)

    def do_join(self, words: list[str]) -> None:
        name, options = words[0], _options(words[1:])
        protocols = [each.partition(":") for each in options.get("protocols", "range:m").split(",")]
        request = JoinGroupRequest(
            options.get("group", "g"),
            int(options.get("session", 10_000)),
            int(options.get("rebalance", 10_000)),
            "" if "new" in words else self._id(name),
            options.get("instance"),
            options.get("type", "consumer"),
            [JoinGroupRequestProtocol(protocol, _metadata(metadata)) for protocol, _, metadata in protocols],
        )
        self.ask(f"{name} join", request, int(options.get("version", 9)), client_id=name)

    def do_sync(self, words: list[str]) -> None:
        name, options = words[0], _options(words[1:])
        given = [word.split(":") for word in words[1:] if ":" in word]
        request = SyncGroupRequest(
            options.get("group", "g"),
            int(options.get("generation", self._generations.get(name, -1))),
            self._id(name),
            options.get("instance"),
            None,
            None,
            [SyncGroupRequestAssignment(self._id(member), _assignment(value)) for member, value in given],
        )
        self.ask(f"{name} sync", request, 3)

    def do_heartbeat(self, words: list[str]) -> None:
        name, options = words[0], _options(words[1:])
        generation = int(options.get("generation", self._generations.get(name, -1)))
        request = HeartbeatRequest(
            options.get("group", "g"), generation, self._id(name), options.get("instance")
        )
        self.ask(f"{name} heartbeat", request, 4)

    def do_leave(self, words: list[str]) -> None:
        members = [
            MemberIdentity("", word.partition(":")[2]) if ":" in word else MemberIdentity(self._id(word))
            for word in words
        ]
        self.ask("- leave", LeaveGroupRequest("g", "", members), 5)

    def do_commit(self, words: list[str]) -> None:
        name, options = words[0], _options(words[1:])
        partitions = tuple(
            PartitionCommit(
                topic, topic.encode().ljust(16), int(partition), int(offset), 3, options.get("metadata", "")
            )
            for topic, partition, offset in map(_partition, _offset_words(words))
        )
        request = CommitOffsets(
            options.get("group", "g"),
            "" if name == "-" else self._id(name),
            None,
            int(options.get("generation", self._generations.get(name, -1))),
            int(options.get("retention", -1)),
            partitions,
        )
        self.ask(f"{name} commit", request, 9)

    def do_offsets(self, words: list[str]) -> None:
        self.ask("- offsets", FetchOffsets(words[0] if words else "g"), 9)

    def do_delete_offsets(self, words: list[str]) -> None:
        keys = tuple((topic, int(partition)) for topic, partition, _ in map(_partition, words[1:]))
        self.ask("- delete-offsets", DeleteOffsets(words[0], keys), 0)

    def do_forget(self, words: list[str]) -> None:
        self.ask("", ForgetTopics(frozenset(words)), 0)

    def do_expire(self, words: list[str]) -> None:
        self.ask("", ExpireOffsets(WALL_MS + self.now_ms), 0)

    def do_describe(self, words: list[str]) -> None:
        self.ask("- describe", DescribeGroup(words[0] if words else "g"), 6)

    def do_list(self, words: list[str]) -> None:
        self.ask("- list", ListGroups(), 5)

    def do_delete(self, words: list[str]) -> None:
        self.ask("- delete", DeleteGroup(words[0]), 2)

    def do_wait(self, words: list[str]) -> None:
        if self._leads:
            self.wait(int(words[0]))
        else:
            self.now_ms += int(words[0])

    def do_hold(self, words: list[str]) -> None:
        self.log.held = True

    def do_release(self, words: list[str]) -> None:
        self.log.held = False
        self.log.catch_up()

    def do_takeover(self, words: list[str]) -> None:
        self.runtime.resign()
        self._lead(self.log.take_over())

    # -- records and answers as text ----------------------------------------------------------------------------

    def tell_record(self, record: CoordinatorRecord) -> str:
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            what = f"offset of {key.group}: {key.topic}-{key.partition}"
            if value is None:
                return f"{what} removed"
            assert isinstance(value, OffsetCommitValue)
            expires = "" if value.expire_timestamp < 0 else f" until {value.expire_timestamp - WALL_MS}"
            return f"{what} = {value.offset}{expires}"
        assert isinstance(key, GroupMetadataKey)
        if value is None:
            return f"group {key.group} removed"
        assert isinstance(value, GroupMetadataValue)
        members = [
            f"{self._tell_id(each.member_id)}={_shown_assignment(each.assignment)}"
            + (f" ({each.group_instance_id})" if each.group_instance_id is not None else "")
            for each in value.members
        ]
        return (
            f"group {key.group}: generation={value.generation} protocol={value.protocol} "
            f"leader={self._tell_id(value.leader)} members=[{', '.join(members)}]"
        )

    def _tell_id(self, member_id: str | None) -> str:
        if not member_id:
            return "-" if member_id is None else "''"
        return self._names.get(member_id, f"{member_id.partition('-')[0]}?")

    def tell(self, response: Any) -> str:
        """Return an answer in one line."""
        if isinstance(response, ErrorCode):
            return response.name
        if isinstance(response, tuple):
            code, codes = response
            return " ".join([code.name, *(each.name for each in codes)])
        if isinstance(response, list):
            return ", ".join(map(self._tell_item, response)) or "nothing"
        if isinstance(response, FetchedOffsets):
            told = [f"{topic}-{at}={value.offset}" for (topic, at), value in sorted(response.offsets.items())]
            return " ".join([response.code.name, *told])
        if isinstance(response, DescribedGroup):
            return self._tell_described(response)
        code = ErrorCode(response.error_code)
        if isinstance(response, JoinGroupResponse):
            return self._tell_joined(response, code)
        if isinstance(response, SyncGroupResponse) and not code:
            return f"assigned {_shown_assignment(response.assignment) or 'nothing'}"
        if isinstance(response, LeaveGroupResponse) and not code:
            return ", ".join(ErrorCode(each.error_code).name for each in response.members)
        return code.name

    def _tell_item(self, item: Any) -> str:
        if isinstance(item, ErrorCode):
            return item.name
        return f"{item.group_id} {item.group_state} {item.protocol_type or '-'}"

    def _tell_joined(self, response: JoinGroupResponse, code: ErrorCode) -> str:
        if code:
            return f"{code.name} {self._tell_id(response.member_id)}"
        members = [f"{self._tell_id(each.member_id)}={_shown(each.metadata)}" for each in response.members]
        return (
            f"{self._tell_id(response.member_id)} in generation {response.generation_id} by {response.protocol_name}, "
            f"leader {self._tell_id(response.leader)}"
            + (f", members [{', '.join(members)}]" if members else "")
            + (", no assignment needed" if response.skip_assignment else "")
        )

    def _tell_described(self, group: DescribedGroup) -> str:
        members = [
            f"{self._tell_id(each.member_id)}={_shown_assignment(each.member_assignment)}"
            for each in group.members
        ]
        code = ErrorCode(group.error_code)
        if code:
            return f"{code.name} {group.group_state}"
        return f"{group.group_state} {group.protocol_data or '-'} [{', '.join(members)}]"


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _offset_words(words: list[str]) -> list[str]:
    return [word for word in words[1:] if word.partition("=")[0].rpartition("-")[2].isdigit()]


def _partition(word: str) -> tuple[str, str, str]:
    name, _, offset = word.partition("=")
    topic, _, partition = name.rpartition("-")
    return topic, partition, offset or "0"


def _metadata(text: str) -> bytes:
    """Encode metadata: `<a+b>` is a subscription to topics, `<a+b;a-0+b-1>` also lists owned partitions. Other text is
    sent as is."""
    if not text.startswith("<"):
        return text.encode()
    topics, claims, owned = text.strip("<>").partition(";")
    partitions = [ConsumerProtocolSubscriptionTopicPartition(*each) for each in _partitions(owned)]
    version = 1 if claims else 0
    subscription = ConsumerProtocolSubscription(topics.split("+"), owned_partitions=partitions)
    return version.to_bytes(2, "big") + encode(subscription, version)


def _assignment(text: str) -> bytes:
    """Encode an assignment: `<a-0+b-1>` lists partitions. Other text is sent as is."""
    if not text.startswith("<"):
        return text.encode()
    partitions = [ConsumerProtocolAssignmentTopicPartition(*each) for each in _partitions(text.strip("<>"))]
    return b"\0\1" + encode(ConsumerProtocolAssignment(partitions), 1)


def _partitions(text: str) -> list[tuple[str, list[int]]]:
    names = [each.rpartition("-") for each in text.split("+") if each]
    return [(topic, [int(index)]) for topic, _, index in names]


def _shown(metadata: bytes) -> str:
    return "subscription" if metadata.startswith((b"\0\0", b"\0\1")) else metadata.decode()


def _shown_assignment(assignment: bytes) -> str:
    if not assignment.startswith(b"\0\1"):
        return assignment.decode()
    given = decode(ConsumerProtocolAssignment, 1, assignment, 2).assigned_partitions
    return "+".join(f"{each.topic}-{index}" for each in given for index in each.partitions)


def _blocks(text: str) -> Iterator[tuple[list[str], str]]:
    comments: list[str] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line]
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        yield comments, commands[0] if commands else ""


def run_script(text: str, kind: Callable[[], GroupScript] | None = None) -> str:
    """Return the script with its current output. `kind` may have further commands."""
    script = (kind or GroupScript)()
    out = []
    for comments, command in _blocks(text):
        block = list(comments)
        if command:
            block += [command, "----", *script.run(command)]
        if block:
            out.append("\n".join(block))
    return "\n\n".join(out) + "\n"
