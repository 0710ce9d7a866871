"""Scripts for the controller. Each entry is a command, `----`, the command's output, and an empty line.

Commands (times are in milliseconds; a name stands for an id, which is made when the name is first used):

    settings KEY=VALUE...                       set keys of the controller, before the first decision
    wait MS [asleep]                            let time pass, and fence expired sessions as the timer does;
                                                with asleep, the controller is paused and fences nothing
    register ID [incarnation=NAME] [dirs=A,B] [rack=R] [host=H] [previous=EPOCH] [cluster=ID] [level=N]
    heartbeat ID [epoch=N] [offset=N] [fence] [stop] [offline=A]
    dead ID [epoch=N] [since=MS]                the process of a broker has ended (`FenceDeadBroker`); it is suspected
                                                since MS milliseconds ago
    join ID[:OPTION+OPTION]...                  register each broker and send its heartbeat, without output
    create NAME [partitions=N] [rf=N] [assign=1,2/2,1] [KEY=VALUE...] [; NAME ...] [validate]
    grow NAME COUNT [assign=1/2] [; NAME COUNT ...] [validate]
    alter TYPE NAME KEY=VALUE|KEY-|KEY+=VALUE|KEY-=VALUE... [; TYPE NAME ...] [validate]
                                                change single keys; TYPE is topic, broker, group or metrics; '' is no NAME
    replace TYPE NAME [KEY=VALUE...] [; ...] [validate]
                                                replace all overrides of a resource
    configs                                     show the stored values
    delete NAME|id:NAME|both:NAME|neither... [version=N]
    producer-ids ID [epoch=N]
    isr NAME-N LEADER REPLICA[@EPOCH],... [epoch=LEADER/PARTITION] [broker=EPOCH] [recovering] [version=N]
                                                AlterPartition; by default, a replica's broker epoch is the current one
    partitions [NAME]                           show the state of partitions
    brokers                                     show the state of brokers
    elect NAME-N,...|all preferred|unclean      ElectLeaders
    reassign NAME-N REPLICA,...|cancel [NAME-N ...] [keep-factor]
                                                AlterPartitionReassignments
    reassignments [NAME-N,...]                  ListPartitionReassignments
    balance | elect-leaderless                  do as the controller's own timers do
    unregister ID
    controller ID [host=H] [level=N] [incarnation=NAME]
                                                ControllerRegistration
    features NAME=LEVEL[!|!!]... [validate] [version=N]
                                                UpdateFeatures; ! allows a safe downgrade, !! an unsafe one
    resign                                      make another controller active, without soft state

The output has the records of the decision, one on each line with the fields that differ from their defaults. Then come
`->` and the response. Very long output is cut in the middle. Records are committed as soon as they are appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs

from odradek.metadata_quorum.config.config_resources import Operation
from odradek.metadata_quorum.controller.brokers.broker_registration import (
    FenceDeadBroker,
    FenceExpiredBrokers,
)
from odradek.metadata_quorum.controller.controller import Activate, Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage
from odradek.metadata_quorum.replica.metadata_batches import encode_values
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.errors import ErrorCode
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.structure import Message
from tests.quorum.controller.controller_commands import PartitionCommands, options_of

CLUSTER = "cluster"
LINES_MAX = 30
LEVELS = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
"""The feature levels at the beginning of each script. Their records have the first offsets of the log."""


class InstantLog:
    """A decision log whose records are committed as soon as they are appended."""

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.epoch = 1
        self.has_room = True
        self._listeners: list[Callable[[int], None]] = []

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def high_watermark(self) -> int:
        return len(self.records)

    def encode_batch(self, records: Sequence[Message]) -> Sequence[Message]:
        encode_values(records)
        return records

    def append_batch(self, batch: Sequence[Message]) -> int:
        self.records += batch
        return len(self.records) - 1

    def subscribe(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    def commit(self) -> None:
        for listener in self._listeners:
            listener(self.high_watermark)


class ControllerScript(PartitionCommands):
    """Runs the commands of one script against one controller."""

    def __init__(self) -> None:
        self.log = InstantLog()
        self.now_ms = 0
        self._settings = ControllerSettings(default_replication_factor=1)
        self._names: dict[bytes, str] = {bytes(16): "0"}
        self._ids: dict[str, bytes] = {}
        self._topic_count = 0
        self._machine: ReplicatedStateMachine[Any, Any] | None = None

    # -- names for ids ------------------------------------------------------------------------------------------

    def id_of(self, name: str) -> bytes:
        if name not in self._ids:
            self._ids[name] = name.encode().rjust(16, b"\x7f")
            self._names[self._ids[name]] = name
        return self._ids[name]

    def new_uuid(self) -> bytes:
        self._topic_count += 1
        return self.id_of(f"T{self._topic_count}")

    # -- the machine --------------------------------------------------------------------------------------------

    @property
    def machine(self) -> ReplicatedStateMachine[Any, Any]:
        if self._machine is None:
            self._lead(MetadataImage.empty(CLUSTER))
        assert self._machine is not None
        return self._machine

    def _lead(self, image: MetadataImage) -> None:
        self._machine = ReplicatedStateMachine(
            Controller(self._settings), self.log, image, random=Random(1), new_uuid=self.new_uuid
        )
        self.decide(Activate(bootstrap_records(LEVELS)))

    @property
    def image(self) -> MetadataImage:
        image: MetadataImage = self.machine.committed_state
        return image

    def decide(self, request: Any, api_version: int | None = None) -> tuple[list[Message], Any]:
        machine = self.machine
        before = self.log.log_end_offset
        deferred = machine.submit(request, self.now_ms, api_version)
        self.log.commit()
        return self.log.records[before:], deferred.response

    # -- commands -----------------------------------------------------------------------------------------------

    def run(self, command: str) -> list[str]:
        """Run one command; return its output."""
        verb, _, rest = command.partition(" ")
        words = rest.split()
        lines = getattr(self, "do_" + verb.replace("-", "_"))(words)
        if len(lines) > LINES_MAX:
            lines = [*lines[:2], f"... {len(lines) - 4} more", *lines[-2:]]
        return lines or ["ok"]

    def do_settings(self, words: list[str]) -> list[str]:
        values: dict[str, Any] = {key: _value(text) for key, text in (word.split("=", 1) for word in words)}
        self._settings = attrs.evolve(self._settings, **values)
        return []

    def do_wait(self, words: list[str]) -> list[str]:
        lines: list[str] = []
        end_ms = self.now_ms + int(words[0])
        step_ms = int(words[0]) if "asleep" in words else 1000
        slept_ms = step_ms if "asleep" in words else 0
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + step_ms)
            fenced = True
            while fenced:
                records, fenced = self.decide(FenceExpiredBrokers(slept_ms))
                slept_ms = 0
                lines += [*map(self.tell, records), *([f"-> fenced {fenced}"] if fenced else ())]
        return lines

    def do_register(self, words: list[str]) -> list[str]:
        options = options_of(words[1:])
        broker_id = int(words[0])
        level = int(options.get("level", "30"))
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=options.get("cluster", CLUSTER),
            incarnation_id=self.id_of(options.get("incarnation", f"I{broker_id}")),
            listeners=[Listener("PLAINTEXT", options.get("host", f"h{broker_id}"), 9092, 0)],
            features=[
                Feature("metadata.version", level, level),
                Feature("eligible.leader.replicas.version", 0, 1),
                Feature("transaction.version", 0, 2),
                Feature("group.version", 0, 1),
            ],
            rack=options.get("rack"),
            log_dirs=[self.id_of(name) for name in options.get("dirs", f"D{broker_id}").split(",") if name],
            previous_broker_epoch=int(options.get("previous", "-1")),
        )
        records, response = self.decide(request)
        return [
            *map(self.tell, records),
            f"-> {ErrorCode(response.error_code).name} epoch={response.broker_epoch}",
        ]

    def do_heartbeat(self, words: list[str]) -> list[str]:
        options = options_of(words[1:])
        broker_id = int(words[0])
        known = self.image.brokers.get(broker_id)
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=int(options.get("epoch", known.epoch if known is not None else 0)),
            current_metadata_offset=int(options.get("offset", self.image.offset)),
            want_fence="fence" in options,
            want_shut_down="stop" in options,
            offline_log_dirs=[self.id_of(name) for name in options.get("offline", "").split(",") if name],
        )
        records, response = self.decide(request)
        flags = [
            flag
            for flag, is_set in (
                ("caught-up", response.is_caught_up),
                ("fenced", response.is_fenced),
                ("shut-down", response.should_shut_down),
            )
            if is_set
        ]
        code = ErrorCode(response.error_code).name
        return [*map(self.tell, records), " ".join(["->", code, *flags])]

    def do_dead(self, words: list[str]) -> list[str]:
        options = options_of(words[1:])
        known = self.image.brokers[int(words[0])]
        since_ms = self.now_ms - int(options.get("since", 0))
        request = FenceDeadBroker(known.broker_id, int(options.get("epoch", known.epoch)), since_ms)
        records, fenced = self.decide(request)
        return [*map(self.tell, records), f"-> fenced {fenced}"]

    def do_join(self, words: list[str]) -> list[str]:
        for word in words:
            broker_id, _, rest = word.partition(":")
            self.do_register([broker_id, *rest.split("+")] if rest else [broker_id])
            self.do_heartbeat([broker_id])
        return []

    def do_create(self, words: list[str]) -> list[str]:
        validate = "validate" in words
        topics = []
        for part in " ".join(word for word in words if word != "validate").split(";"):
            name, *rest = part.split() or ["''"]
            topics.append(_creatable("" if name == "''" else name, rest))
        records, response = self.decide(CreateTopicsRequest(topics, 1000, validate))
        lines = [self.tell(record) for record in records]
        for result in response.topics:
            line = f"-> {result.name} {ErrorCode(result.error_code).name}"
            if result.error_message:
                line += f": {result.error_message}"
            else:
                set_ones = [f"{c.name}={c.value}" for c in result.configs or () if c.config_source == 1]
                line += f" partitions={result.num_partitions} rf={result.replication_factor} {set_ones}"
            lines.append(line)
        return lines

    def do_grow(self, words: list[str]) -> list[str]:
        topics = []
        for part in _parts(words):
            assignments = None
            if part[2:]:
                assignments = [
                    CreatePartitionsAssignment([int(number) for number in replicas.split(",") if number])
                    for replicas in part[2].removeprefix("assign=").split("/")
                ]
            topics.append(CreatePartitionsTopic(part[0], int(part[1]), assignments))
        records, response = self.decide(CreatePartitionsRequest(topics, 1000, "validate" in words))
        return [*map(self.tell, records), *(_outcome(each.name, each) for each in response.results)]

    def do_alter(self, words: list[str]) -> list[str]:
        resources = [
            incremental.AlterConfigsResource(
                RESOURCES[kind], _name(name), [_operation(word) for word in rest]
            )
            for kind, name, *rest in _parts(words)
        ]
        return self._altered(incremental.IncrementalAlterConfigsRequest(resources, "validate" in words))

    def do_replace(self, words: list[str]) -> list[str]:
        resources = [
            absolute.AlterConfigsResource(
                RESOURCES[kind],
                _name(name),
                [absolute.AlterableConfig(*word.split("=", 1)) for word in rest],
            )
            for kind, name, *rest in _parts(words)
        ]
        return self._altered(absolute.AlterConfigsRequest(resources, "validate" in words))

    def _altered(self, request: Message) -> list[str]:
        records, response = self.decide(request)
        outcomes = [
            _outcome(f"{each.resource_type}:{each.resource_name}", each) for each in response.responses
        ]
        return [*map(self.tell, records), *outcomes]

    def do_configs(self, words: list[str]) -> list[str]:
        return [
            f"{kind}:{name} {dict(values)}" for (kind, name), values in sorted(self.image.configs.items())
        ]

    def do_delete(self, words: list[str]) -> list[str]:
        request = DeleteTopicsRequest(timeout_ms=1000)
        version = 6
        for word in words:
            kind, colon, name = word.rpartition(":")
            if word.startswith("version="):
                version = int(word.partition("=")[2])
            elif word == "neither":
                request.topics.append(DeleteTopicState(None))
            elif colon:
                named = self.image.topics.get(name)
                topic_id = named.topic_id if named is not None else self.id_of(name)
                request.topics.append(DeleteTopicState(name if kind == "both" else None, topic_id))
            elif version < 6:
                request.topic_names.append(word)
            else:
                request.topics.append(DeleteTopicState(word))
        records, response = self.decide(request, version)
        lines = [self.tell(record) for record in records]
        for result in response.responses:
            line = f"-> {result.name} {self._names[result.topic_id]} {ErrorCode(result.error_code).name}"
            lines.append(f"{line}: {result.error_message}" if result.error_message else line)
        return lines

    def do_producer_ids(self, words: list[str]) -> list[str]:
        options = options_of(words[1:])
        known = self.image.brokers.get(int(words[0]))
        epoch = int(options.get("epoch", known.epoch if known is not None else 0))
        records, response = self.decide(AllocateProducerIdsRequest(int(words[0]), epoch))
        code = ErrorCode(response.error_code).name
        answer = f"-> {code} start={response.producer_id_start} count={response.producer_id_len}"
        return [*map(self.tell, records), answer]

    def do_resign(self, words: list[str]) -> list[str]:
        image = self.image
        self.machine.resign()
        self.log.epoch += 1
        self._lead(image)
        return []

    def do_partitions(self, words: list[str]) -> list[str]:
        lines = []
        for name in words or sorted(self.image.topics):
            for number, partition in self.image.topics[name].partitions.items():
                lines.append(f"{name}-{number} {self._tell_partition(partition)}")
        return lines

    def do_brokers(self, words: list[str]) -> list[str]:
        lines = []
        for broker in self.image.brokers.values():
            state = "fenced" if broker.fenced else "stopping" if broker.in_controlled_shutdown else "active"
            directories = [self._names[directory] for directory in broker.log_dirs]
            lines.append(f"{broker.broker_id} epoch={broker.epoch} {state} dirs={directories}")
        return lines

    # -- formatting ---------------------------------------------------------------------------------------------

    def _tell_partition(self, partition: PartitionImage) -> str:
        line = (
            f"leader={partition.leader} epoch={partition.leader_epoch}/{partition.partition_epoch} "
            f"replicas={list(partition.replicas)} isr={list(partition.isr)}"
        )
        if partition.elr:
            line += f" elr={list(partition.elr)}"
        if partition.adding_replicas or partition.removing_replicas:
            line += f" adding={list(partition.adding_replicas)} removing={list(partition.removing_replicas)}"
        if partition.last_known_elr:
            line += f" last-known={list(partition.last_known_elr)}"
        return line + (" recovering" if partition.leader_recovery_state else "")

    def tell(self, message: Message) -> str:
        """Format a record: its name and the fields that differ from their defaults."""
        default = type(message)()
        fields = [
            f"{name}={self._tell_value(getattr(message, name))}"
            for name in (field.name for field in type(message).__attrs_attrs__)
            if getattr(message, name) != getattr(default, name)
        ]
        return " ".join([type(message).__name__.removesuffix("Record"), *fields])

    def _tell_value(self, value: Any) -> str:
        if isinstance(value, bytes):
            return self._names[value]
        if isinstance(value, list):
            return "[" + ", ".join(self._tell_value(item) for item in value) + "]"
        if hasattr(value, "host"):
            return f"{value.name}://{value.host}:{value.port}"
        if hasattr(value, "max_supported_version"):
            return f"{value.name}:{value.min_supported_version}-{value.max_supported_version}"
        return str(value)


RESOURCES = {"topic": 2, "broker": 4, "metrics": 16, "group": 32}


def _parts(words: list[str]) -> list[list[str]]:
    return [part.split() for part in " ".join(word for word in words if word != "validate").split(";")]


def _name(word: str) -> str:
    return "" if word == "''" else word


def _operation(word: str) -> incremental.AlterableConfig:
    if word.endswith("-"):
        return incremental.AlterableConfig(word[:-1], Operation.DELETE, None)
    key, _, value = word.partition("=")
    operation = {"+": Operation.APPEND, "-": Operation.SUBTRACT}.get(key[-1], Operation.SET)
    return incremental.AlterableConfig(key.rstrip("+-"), operation, value)


def _outcome(name: str, result: Any) -> str:
    line = f"-> {name} {ErrorCode(result.error_code).name}"
    return f"{line}: {result.error_message}" if result.error_message else line


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text)


def _creatable(name: str, words: list[str]) -> CreatableTopic:
    topic = CreatableTopic(name, 1, 1, [], [])
    for word in words:
        key, equals, value = word.partition("=")
        if key == "partitions":
            topic.num_partitions = int(value)
        elif key == "rf":
            topic.replication_factor = int(value)
        elif key == "assign":
            topic.num_partitions = topic.replication_factor = -1
            topic.assignments = [
                CreatableReplicaAssignment(
                    int(number), [int(replica) for replica in replicas.split(",") if replica]
                )
                for number, _, replicas in (item.partition(":") for item in value.split("/"))
            ]
        else:
            topic.configs.append(CreatableTopicConfig(key, value.replace("_", " ") if equals else None))
    if topic.assignments and any(word.startswith(("partitions=", "rf=")) for word in words):
        for word in words:
            key, _, value = word.partition("=")
            if key == "partitions":
                topic.num_partitions = int(value)
            elif key == "rf":
                topic.replication_factor = int(value)
    return topic


def blocks(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (command or comment lines, expected output) of a script."""
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        if "----" in lines:
            at = lines.index("----")
            yield lines[at - 1], lines[: at - 1], lines[at + 1 :]
        else:
            yield "", lines, []


def run_script(text: str) -> str:
    """Run a script, and return it with the output that its commands now have."""
    script = ControllerScript()
    out = []
    for command, comments, _ in blocks(text):
        if not command:
            out.append("\n".join(comments))
        else:
            out.append("\n".join([*comments, command, "----", *script.run(command)]))
    return "\n\n".join(out) + "\n"
