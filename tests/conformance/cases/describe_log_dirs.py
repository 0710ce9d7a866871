"""DescribeLogDirs: the logs in each directory, and their sizes."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tests.conformance.asking.batches import filled
from tests.conformance.asking.talk import Talk, case


def _describe(talk: Talk, version: int, *topics: tuple[str, list[int]]) -> None:
    talk.ask(DescribeLogDirsRequest([DescribableLogDirTopic(*topic) for topic in topics]), version)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = filled(talk, f"dld{version}", 3)
    _describe(talk, version, (name, [0, 1, 2]))
    _describe(talk, version, (name, [0, 7, -1]), (talk.name("dld-unknown"), [0]))
    _describe(talk, version, (name, []))
    _describe(talk, version)

    def only(response: DescribeLogDirsResponse) -> DescribeLogDirsResponse:
        for result in response.results:
            result.topics = [topic for topic in result.topics if topic.name == name]
        return response

    talk.ask(DescribeLogDirsRequest(None), version, only)


for _version in range(1, 6):
    case(f"describe_log_dirs v{_version}")(partial(_versions, version=_version))


@case("describe_log_dirs names a partition twice")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dld-twice", 2)
    for version in (1, 5):
        _describe(talk, version, (name, [0, 0]))
        _describe(talk, version, (name, [0]), (name, [1]))
        _describe(talk, version, (name, [0]), (name, [0]))


@case("describe_log_dirs of topics that cannot be")
def _(talk: Talk) -> None:
    for version in (1, 5):
        _describe(talk, version, ("", [0]), ("bad name", [0]), ("x" * 250, [0]))


@case("describe_log_dirs of a topic that is gone")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "dld-gone")
    talk.delete_topic(name)
    request = DescribeLogDirsRequest([DescribableLogDirTopic(name, [0])])
    talk.ask_until(request, 5, lambda answer: not any(result.topics for result in answer.results))
