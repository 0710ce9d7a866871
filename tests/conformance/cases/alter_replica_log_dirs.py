"""AlterReplicaLogDirs: moves between directories, on a server that has a single one."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tests.conformance.asking.batches import filled
from tests.conformance.asking.talk import Talk, case


def _alter(talk: Talk, version: int, *moves: tuple[str, str, list[int]]) -> None:
    dirs = [
        AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, partitions)])
        for path, name, partitions in moves
    ]
    talk.ask(AlterReplicaLogDirsRequest(dirs), version)


def _own_directory(talk: Talk) -> str:
    return str(talk.ask_silently(DescribeLogDirsRequest([]), 1).results[0].log_dir)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = filled(talk, f"ard{version}", 2)
    _alter(talk, version, (_own_directory(talk), name, [0, 1]))
    _alter(talk, version, ("/no/such/directory", name, [0, 1]))
    _alter(talk, version, (_own_directory(talk), talk.name("ard-unknown"), [0]))
    _alter(talk, version, (_own_directory(talk), name, [0, 7, -1]))
    _alter(talk, version, ("/no/such/directory", talk.name("ard-unknown"), [0]))


for _version in (1, 2):
    case(f"alter_replica_log_dirs v{_version}")(partial(_versions, version=_version))

for _label, _path in {
    "an empty path": "",
    "a relative path": "data",
    "the root": "/",
    "a path of 300 characters": "/" + "x" * 299,
    "a path with a blank": "/a b",
}.items():

    def _one(talk: Talk, *, stem: str, path: str) -> None:
        name, _ = talk.topic(f"ard-{stem}".replace(" ", "-"))
        _alter(talk, 2, (path, name, [0]))

    case(f"alter_replica_log_dirs to {_label}")(partial(_one, stem=_label, path=_path))


@case("alter_replica_log_dirs of nothing")
def _(talk: Talk) -> None:
    name, _ = talk.topic("ard-nothing")
    for version in (1, 2):
        _alter(talk, version)
        _alter(talk, version, (_own_directory(talk), name, []))
        talk.ask(AlterReplicaLogDirsRequest([AlterReplicaLogDir("/no/such/directory", [])]), version)


@case("alter_replica_log_dirs of topics that cannot be")
def _(talk: Talk) -> None:
    _alter(talk, 2, (_own_directory(talk), "bad name", [0]), (_own_directory(talk), "", [0]))


@case("alter_replica_log_dirs of a partition twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("ard-twice")
    _alter(talk, 2, (_own_directory(talk), name, [0, 0]))
    _alter(talk, 2, (_own_directory(talk), name, [0]), ("/no/such/directory", name, [0]))


@case("alter_replica_log_dirs with a path that ends in a slash")
def _(talk: Talk) -> None:
    name, _ = talk.topic("ard-slash")
    _alter(talk, 2, (_own_directory(talk) + "/", name, [0]))
