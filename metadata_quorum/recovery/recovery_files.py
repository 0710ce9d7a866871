"""The two kinds of files that an operator copies between hosts during a recovery: reports about nodes, and
the plan. PURE.

Each file has two lines of JSON: the first contains a digest of the second, and the second has the contents. A
plan is large because of its snapshot. A report includes the node's copy of the metadata log, so that the plan
can be made on another host. Both files contain salted passwords and configurations, so only their owner may
read them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.recovery.copies import read_copy
from odradek.metadata_quorum.recovery.found import CopyFiles, FoundDirectory, FoundNode, FoundReplica
from odradek.metadata_quorum.recovery.plan import NodePlan, RecoveryPlan
from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

__all__ = ["MalformedFile", "decode_plan", "decode_report", "encode_plan", "encode_report"]

Json: TypeAlias = "str | int | bool | Sequence[Json] | Mapping[str, Json] | None"
REPORT, PLAN = "odradek.recovery.report", "odradek.recovery.plan"
_VERSION = 4


class _Copy(TypedDict):
    snapshot_end: tuple[int, int] | None
    snapshot: str
    log: str


class _Node(TypedDict):
    node_id: int
    cluster_id: str
    is_broker: bool
    is_controller: bool
    endpoints: list[tuple[str, str, int]]
    static_voters: list[int]
    servers: list[tuple[str, int]]
    metadata_path: str
    directories: list[tuple[str, str | None, str]]
    copy: _Copy | None
    copy_problem: str
    quorum_epoch: int
    producer_id: int
    replicas: list[tuple[str, int, str, str, int, int]]
    unreadable: list[str]
    missing: list[tuple[str, int]]


class _PlannedNode(TypedDict):
    node_id: int
    metadata_path: str
    new_ids: dict[str, str]
    copy_end: tuple[int, int]


class _Report(TypedDict):
    nodes: list[_Node]


class _Plan(TypedDict):
    cluster_id: str
    source: str
    recovery_id: str
    end: tuple[int, int]
    next_producer_id: int
    nodes: list[_PlannedNode]
    snapshot: str


class MalformedFile(Exception):
    """Raised if a file is neither a report nor a plan of this version, or is damaged."""


def encode_report(nodes: Sequence[FoundNode]) -> bytes:
    """Encode a report about the nodes of a host."""
    return _sealed(REPORT, {"nodes": [_node(each) for each in nodes]})


def decode_report(data: bytes) -> list[FoundNode]:
    """Decode a report. Raises `MalformedFile`."""
    document: _Report = json.loads(_unsealed(REPORT, data))
    try:
        return [_found_node(each) for each in document["nodes"]]
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise MalformedFile(f"the report cannot be read: {error!r}") from None


def encode_plan(plan: RecoveryPlan) -> bytes:
    """Encode a plan."""
    nodes: list[Json] = [
        {
            "node_id": each.node_id,
            "metadata_path": each.metadata_path,
            "new_ids": {path: uuid_to_text(uuid) for path, uuid in each.new_ids.items()},
            "copy_end": [each.copy_end.offset, each.copy_end.epoch],
        }
        for each in plan.nodes
    ]
    document: dict[str, Json] = {
        "cluster_id": plan.cluster_id,
        "source": plan.source,
        "recovery_id": plan.recovery_id,
        "end": [plan.end.offset, plan.end.epoch],
        "next_producer_id": plan.next_producer_id,
        "nodes": nodes,
        "snapshot": _packed(plan.snapshot),
    }
    return _sealed(PLAN, document)


def decode_plan(data: bytes) -> RecoveryPlan:
    """Decode a plan. The plan's voters are read from its snapshot. Raises `MalformedFile`,
    `MetadataLogCorrupt`.
    """
    document: _Plan = json.loads(_unsealed(PLAN, data))
    try:
        nodes = tuple(
            NodePlan(
                each["node_id"],
                each["metadata_path"],
                {path: uuid_from_text(text) for path, text in each["new_ids"].items()},
                OffsetAndEpoch(*each["copy_end"]),
            )
            for each in document["nodes"]
        )
        end, snapshot = OffsetAndEpoch(*document["end"]), _unpacked(document["snapshot"])
        cluster_id, source = document["cluster_id"], document["source"]
        recovery_id = document["recovery_id"]
        next_producer_id = document["next_producer_id"]
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise MalformedFile(
            f"the recovery plan is incomplete or of another version ({error!r}): make it again"
        ) from None
    voters: VoterSet | None = read_copy(CopyFiles(end, snapshot, b""), "the plan", None, cluster_id).voters
    return RecoveryPlan(cluster_id, source, recovery_id, end, next_producer_id, voters, nodes, snapshot)


def _sealed(kind: str, document: Mapping[str, Json]) -> bytes:
    """Encode a file: the first line with the digest, and `document` as the second line."""
    body = json.dumps(document).encode()
    head = {"kind": kind, "version": _VERSION, "digest": hashlib.sha256(body).hexdigest()}
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def _unsealed(kind: str, data: bytes) -> bytes:
    """Check the digest of a file, and return its second line. Raises `MalformedFile`."""
    head, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    known = {"kind": kind, "version": _VERSION, "digest": hashlib.sha256(body).hexdigest()}
    try:
        found: dict[str, Json] = json.loads(head)
    except (ValueError, RecursionError):
        raise MalformedFile("its first line is not JSON") from None
    if not isinstance(found, dict) or (found.get("kind"), found.get("version")) != (kind, _VERSION):
        raise MalformedFile(f"it is no {kind} of version {_VERSION}")
    if found != known:
        raise MalformedFile("its digest is wrong: it was cut or changed")
    return body


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))


def _node(node: FoundNode) -> dict[str, Json]:
    copy = node.copy
    return {
        "node_id": node.node_id,
        "cluster_id": node.cluster_id,
        "is_broker": node.is_broker,
        "is_controller": node.is_controller,
        "endpoints": [list(each) for each in node.endpoints],
        "static_voters": list(node.static_voters),
        "servers": [list(each) for each in node.servers],
        "metadata_path": node.metadata_path,
        "directories": [
            [each.path, None if each.directory_id is None else uuid_to_text(each.directory_id), each.problem]
            for each in node.directories
        ],
        "copy": None
        if copy is None
        else {
            "snapshot_end": None
            if copy.snapshot_end is None
            else [copy.snapshot_end.offset, copy.snapshot_end.epoch],
            "snapshot": _packed(copy.snapshot),
            "log": _packed(copy.log),
        },
        "copy_problem": node.copy_problem,
        "quorum_epoch": node.quorum_epoch,
        "producer_id": node.producer_id,
        "replicas": [
            [
                each.topic,
                each.partition,
                uuid_to_text(each.topic_id),
                uuid_to_text(each.directory_id),
                each.leader_epoch,
                each.end_offset,
            ]
            for each in node.replicas
        ],
        "unreadable": list(node.unreadable),
        "missing": [list(each) for each in node.missing],
    }


def _found_node(document: _Node) -> FoundNode:
    copy = document["copy"]
    files = None
    if copy is not None:
        end = copy["snapshot_end"]
        files = CopyFiles(
            None if end is None else OffsetAndEpoch(*end), _unpacked(copy["snapshot"]), _unpacked(copy["log"])
        )
    return FoundNode(
        node_id=document["node_id"],
        cluster_id=document["cluster_id"],
        is_broker=document["is_broker"],
        is_controller=document["is_controller"],
        endpoints=tuple((name, host, port) for name, host, port in document["endpoints"]),
        static_voters=tuple(document["static_voters"]),
        servers=tuple((host, port) for host, port in document["servers"]),
        metadata_path=document["metadata_path"],
        directories=tuple(
            FoundDirectory(path, None if text is None else uuid_from_text(text), problem)
            for path, text, problem in document["directories"]
        ),
        copy=files,
        copy_problem=document["copy_problem"],
        quorum_epoch=document["quorum_epoch"],
        producer_id=document["producer_id"],
        replicas=tuple(
            FoundReplica(topic, number, uuid_from_text(topic_id), uuid_from_text(directory_id), epoch, end)
            for topic, number, topic_id, directory_id, epoch, end in document["replicas"]
        ),
        unreadable=tuple(document["unreadable"]),
        missing=tuple((topic, number) for topic, number in document["missing"]),
    )
