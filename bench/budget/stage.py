"""The measured node: it has a thousand partitions, groups with offsets, and a registered broker that does not exist.

It also has content as in a real cluster (`bench.budget.holdings`), and an authorizer that checks each request.
"""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from bench.budget.broker_lines import encode_subscription
from bench.budget.frames import Stage, framed
from bench.budget.holdings import JUDGE, Holdings, add_records
from bench.budget.login import connect
from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.wire.api import response_class, response_header_version
from odradek.wire.codec import decode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.wire.structure import Message
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess, free_ports

WIDE = "wide"
GROUP = "offsets"
TRANSACTIONAL_ID = "judged"
MEMBERS_GROUPS = 10
READY_SECONDS = 60.0
PASSWORD = "judge-secret"
AT_ONCE = 200
"""The number of requests that are sent before the first answer is read, while the node is prepared."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "offsets.topic.num.partitions": "4",
    "auto.create.topics.enable": "false",
    "log.message.timestamp.type": "LogAppendTime",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "delegation.token.secret.key": "judged",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{JUDGE}="{PASSWORD}";'
    ),
}


class Client:
    """A blocking connection to one listener."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 60.0) -> None:
        self.socket = connect(bootstrap)
        self.socket.settimeout(timeout_seconds)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def exchange(self, frame: bytes) -> bytes | None:
        """Send a frame and return the answer without its size; None if the node closes the connection instead.

        Raises `TimeoutError`.
        """
        try:
            self.socket.sendall(frame)
            size = self._exactly(4)
            return None if size is None else self._exactly(int.from_bytes(size, "big"))
        except (ConnectionError, BrokenPipeError):
            return None

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(min(1 << 20, count - len(parts)))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def ask(self, message: Message, version: int) -> Any:
        """Send a request and return the decoded answer. Raises `ConnectionError` if the node closes the connection."""
        assert message.API_KEY is not None
        answer = self.exchange(framed(message, version))
        if answer is None:
            raise ConnectionError(
                f"the node closed the connection instead of answering {type(message).__name__}"
            )
        return answered(answer, message.API_KEY, version)

    def ask_many(self, messages: Iterable[Message], version: int) -> Iterator[Any]:
        """Send many requests, several at once, and yield their decoded answers. Raises `ConnectionError`."""
        left = iter(messages)
        while some := list(islice(left, AT_ONCE)):
            self.socket.sendall(b"".join(framed(message, version) for message in some))
            for message in some:
                size = self._exactly(4)
                answer = None if size is None else self._exactly(int.from_bytes(size, "big"))
                if answer is None or message.API_KEY is None:
                    raise ConnectionError(
                        f"the node closed the connection instead of answering {type(message).__name__}"
                    )
                yield answered(answer, message.API_KEY, version)


def answered(answer: bytes, api_key: int, version: int) -> Any:
    """Decode the response in a frame without its size."""
    offset = 5 if response_header_version(api_key, version) else 4
    return decode(response_class(api_key), version, answer, offset)


@attrs.frozen
class Judged:
    """The measured node while it runs, with its contents and addresses."""

    process: ServerProcess
    stage: Stage
    controller: str
    metrics: str
    login: str
    """The address of the listener with SASL, including user and password."""
    holdings: Holdings

    def address(self, listener: str) -> str:
        return {"broker": self.process.bootstrap, "controller": self.controller, "login": self.login}[
            listener
        ]

    def served(self, listener: str) -> dict[int, tuple[int, int]]:
        """Return the versions (first, last) by API key that ApiVersions lists at a listener. Produce begins at 3,
        although ApiVersions lists it from 0.
        """
        with Client(self.address(listener)) as client:
            response = client.ask(ApiVersionsRequest("judge", "1"), 3)
        return {
            each.api_key: (
                max(each.min_version, 3) if each.api_key == 0 else each.min_version,
                each.max_version,
            )
            for each in response.api_keys
        }

    def figures(self) -> dict[str, float]:
        """Fetch the metrics page. Return the values by name and labels."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
        }

    def commit_offsets(self) -> None:
        """Commit an offset for each partition of `wide` again. Expensive requests may have deleted the offsets."""
        with Client(self.process.bootstrap) as client:
            _commit_everywhere(client, self.stage.wide_partitions)

    def reset_peak(self) -> None:
        """Reset the peak of the node's resident memory (VmHWM)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@contextmanager
def judged_node(
    directory: Path, partitions: int = 1000, holdings: Holdings | None = None
) -> Iterator[Judged]:
    """Run a node in `directory`, with about `partitions` partitions and the given `holdings`, for the block."""
    holdings = holdings or Holdings()
    broker, controller, login, metrics = (f"127.0.0.1:{port}" for port in free_ports(4))
    listeners = {
        "listeners": f"PLAINTEXT://{broker},LOGIN://{login},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker},LOGIN://{login}",
        "controller.quorum.voters": f"1@{controller}",
        "odradek.metrics.listener": metrics,
    }
    properties = prepare_odradek(directory, settings={**SETTINGS, **listeners})
    settings = dict(line.split("=", 1) for line in properties.read_text().splitlines())
    add_records(Path(settings["log.dirs"]), list(holdings.records()))
    process = launch_odradek(properties)
    try:
        stage = lay_stage(process.bootstrap, controller, partitions, settings["log.dirs"])
        _hold_on_coordinators(process.bootstrap, holdings)
        login = f"{JUDGE}:{PASSWORD}@{login}"
        yield Judged(process, stage, controller, metrics, login, holdings)
    finally:
        process.stop()


def lay_stage(bootstrap: str, controller: str, partitions: int, log_dir: str) -> Stage:
    """Prepare a node: make topics and groups, and register a broker that does not exist. Return the names and ids that
    frames can use.
    """
    narrow = tuple(f"narrow-{number}" for number in range(partitions // 2))
    wide = partitions - len(narrow)
    with Client(bootstrap) as client:
        topics = [CreatableTopic(WIDE, wide, 1), *(CreatableTopic(name, 1, 1) for name in narrow)]
        created = client.ask(CreateTopicsRequest(topics, 60_000), 5)
        assert not any(topic.error_code for topic in created.topics), created
        _wait_until_hosted(client, partitions)
        ids = {topic.name: topic.topic_id for topic in client.ask(MetadataRequest(None), 12).topics}
        _wait_for_coordinators(client)
        _commit_everywhere(client, wide)
        members = [_settle_member(client, f"members-{number}") for number in range(MEMBERS_GROUPS)]
        producer_id = _init_producer(client)
        cluster_id = client.ask(DescribeClusterRequest(), 1).cluster_id
    with Client(controller) as client:
        registered = client.ask(
            BrokerRegistrationRequest(
                2,
                cluster_id,
                b"judge's broker 2",
                [Listener("PLAINTEXT", "127.0.0.1", 1, 0)],
                [Feature(name, *levels) for name, levels in SUPPORTED_FEATURES.items()],
                log_dirs=[b"judge's log dir."],
            ),
            4,
        )
        assert registered.error_code == 0, ErrorCode(registered.error_code).name
    return Stage(
        WIDE,
        ids[WIDE],
        wide,
        narrow,
        tuple(ids[name] for name in narrow),
        GROUP,
        tuple(f"members-{number}" for number in range(MEMBERS_GROUPS)),
        *members[0],
        cluster_id,
        registered.broker_epoch,
        log_dir,
        TRANSACTIONAL_ID,
        producer_id,
    )


def _init_producer(client: Client) -> int:
    """Initialize a new transactional id, and return its producer id."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        found = client.ask(FindCoordinatorRequest(TRANSACTIONAL_ID, 1), 3)
        if not found.error_code:
            made = client.ask(InitProducerIdRequest(TRANSACTIONAL_ID, 900_000), 4)
            if not made.error_code:
                return int(made.producer_id)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the transaction coordinator was not ready within {READY_SECONDS:g} s")
        time.sleep(0.1)


def _wait_until_hosted(client: Client, partitions: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        results = client.ask(DescribeLogDirsRequest(None), 4).results
        if sum(len(topic.partitions) for result in results for topic in result.topics) >= partitions:
            return
        assert time.monotonic() < deadline, "the partitions were not made in time"
        time.sleep(0.05)


def _hold_on_coordinators(bootstrap: str, holdings: Holdings) -> None:
    """Make the groups and transactional ids of `holdings`, with many requests at a time."""
    topics = [OffsetCommitRequestTopic(WIDE, partitions=[OffsetCommitRequestPartition(0, 1, -1, "")])]
    commits = (
        OffsetCommitRequest(f"held-{number}", -1, "", None, -1, topics) for number in range(holdings.groups)
    )
    producers = (
        InitProducerIdRequest(f"held-{number}", 900_000) for number in range(holdings.transactional_ids)
    )
    with Client(bootstrap) as client:
        for answer in client.ask_many(commits, 8):
            assert not answer.topics[0].partitions[0].error_code, answer
        for answer in client.ask_many(producers, 4):
            assert not answer.error_code, answer


def _wait_for_coordinators(client: Client) -> None:
    """Wait until the coordinators of all groups serve."""
    deadline = time.monotonic() + READY_SECONDS
    names = [GROUP, "joined", *(f"members-{number}" for number in range(MEMBERS_GROUPS))]
    while True:
        found = client.ask(FindCoordinatorRequest("", 0, names), 4).coordinators
        if not any(each.error_code for each in found):
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    for name in names:
        while _commit(client, name, 1) in (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        ):
            assert time.monotonic() < deadline, name
            time.sleep(0.05)


def _commit(client: Client, group: str, partitions: int) -> int:
    committed = [OffsetCommitRequestPartition(index, 1, -1, "") for index in range(partitions)]
    topics = [OffsetCommitRequestTopic(WIDE, partitions=committed)]
    response = client.ask(OffsetCommitRequest(group, -1, "", None, -1, topics), 8)
    codes = {each.error_code for each in response.topics[0].partitions}
    return int(max(codes))


def _commit_everywhere(client: Client, partitions: int) -> None:
    assert _commit(client, GROUP, partitions) == 0


def _settle_member(client: Client, group: str) -> tuple[str, int]:
    """Let one member join a group and complete the rebalance. Return its member id and generation."""
    protocols = [JoinGroupRequestProtocol("range", encode_subscription([WIDE]))]
    joined = client.ask(JoinGroupRequest(group, 1_800_000, 1_800_000, "", None, "consumer", protocols), 3)
    assert joined.error_code == 0, ErrorCode(joined.error_code).name
    mine = [SyncGroupRequestAssignment(joined.member_id, b"")]
    synced = client.ask(
        SyncGroupRequest(group, joined.generation_id, joined.member_id, None, None, None, mine), 2
    )
    assert synced.error_code == 0, ErrorCode(synced.error_code).name
    return joined.member_id, joined.generation_id


__all__ = ["Client", "Judged", "answered", "judged_node", "lay_stage", "socket"]
