"""ElectLeaders: preferred and unclean elections on a cluster of one broker."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tests.conformance.asking.talk import Talk, case

PREFERRED, UNCLEAN = 0, 1
Wanted = list[tuple[str, list[int]]] | None


def _elect(
    talk: Talk, wanted: Wanted, kind: int = PREFERRED, version: int = 2, timeout_ms: int = 10_000
) -> None:
    topics = None if wanted is None else [TopicPartitions(name, list(indexes)) for name, indexes in wanted]
    talk.ask(ElectLeadersRequest(kind, topics, timeout_ms), version)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"elect{version}", 2)
    _elect(talk, [(name, [0, 1])], version=version)
    _elect(talk, [(name, [1, 7]), (talk.name("elect-unknown"), [0])], version=version)
    _elect(talk, [], version=version)
    if version:
        _elect(talk, [(name, [0])], UNCLEAN, version=version)


for _version in range(3):
    case(f"elect_leaders v{_version}")(partial(_versions, version=_version))


@case("elect_leaders of all")
def _(talk: Talk) -> None:
    name, _ = talk.topic("elect-all", 3)

    def of_the_topic(response: ElectLeadersResponse) -> ElectLeadersResponse:
        found = [result for result in response.replica_election_results if result.topic == name]
        response.replica_election_results = found
        return response

    for version in range(3):
        talk.ask(ElectLeadersRequest(PREFERRED, None, 10_000), version, of_the_topic)
    talk.ask(ElectLeadersRequest(UNCLEAN, None, 10_000), 2, of_the_topic)


@case("elect_leaders names a partition twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("elect-twice", 2)
    _elect(talk, [(name, [0, 0])])
    _elect(talk, [(name, [0]), (name, [1])])


@case("elect_leaders of partitions that cannot be")
def _(talk: Talk) -> None:
    name, _ = talk.topic("elect-bad")
    _elect(talk, [(name, [-1])])
    _elect(talk, [(name, [])])
    _elect(talk, [("", [0]), ("bad name", [0])])
    _elect(talk, [("__cluster_metadata", [0])])


@case("elect_leaders by an unknown kind of election")
def _(talk: Talk) -> None:
    name, _ = talk.topic("elect-kind")
    for kind in (2, -1):
        _elect(talk, [(name, [0])], kind)
