"""Long requests, decided in parts of some milliseconds each, whose answers are joined to one. PURE.

A request has a result for each thing that it names (a topic, a resource, a partition). So it can be split into
several consecutive requests of the same kind. The parts are decisions of their own: other requests may be decided in
between. A part that is refused leaves the others alone, just as a refused thing leaves the other things alone.

* **What has to be judged together is in one part**: things with the same key. So duplicates are found as if there were
  no parts.
* **What limits a whole request is judged over the whole**: how much it names, and how much it would write. Where the sum may
  be too much, every part is tried before the first is decided (`Trial`).
* **Results are one per thing**, in the order of the request; where Kafka tells refused ones apart, they are apart in each part.

A part shares its things with the request that it comes from, so nobody may change either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import attrs

from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX, check_named
from odradek.metadata_quorum.controller.partitions.create_partitions import (
    new_partitions_asked,
    too_many_partitions,
)
from odradek.metadata_quorum.controller.refusals import refusal
from odradek.metadata_quorum.controller.topics import check_partitions_asked, partitions_asked
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import alter_partition as isr
from odradek.wire.messages import alter_partition_reassignments as moving
from odradek.wire.messages import assign_replicas_to_dirs as assigning
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopicResult
from odradek.wire.messages.create_topics import CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.elect_leaders import ElectLeadersRequest, ReplicaElectionResult, TopicPartitions
from odradek.wire.structure import Message

__all__ = ["PART_WEIGHT_MAX", "LongRequest", "Parts", "Trial", "long_request"]

PART_WEIGHT_MAX = 400
"""The most that one part weighs, about 10 ms: a topic, resource or partition weighs one, and so does each thing that is about it."""


@attrs.frozen
class Trial:
    """Asked before a long request is decided: its response is how many records `request` would write now, None where
    this node does not decide."""

    request: Message


@attrs.frozen
class Parts:
    """The parts of a long request, and how their responses are joined."""

    requests: list[Message]
    """The parts, in the order in which they have to be decided."""
    trials: list[Trial]
    """Trials that are decided first, where the parts may write too much together."""
    join: Callable[[list[Any]], Any]
    """Makes the response to the whole request from the responses to all `requests`."""


@attrs.frozen
class LongRequest:
    """A request that is decided in parts. `split` and `refuse` take long too. They read only values that never
    change, so they may run in a worker.
    """

    request: Any
    _image: MetadataImage
    _settings: ControllerSettings
    _kind: _Kind
    _is_of_client: bool
    _weight_max: int

    def split(self) -> Parts:
        """Split the request. Raises `KafkaError` POLICY_VIOLATION if it names too much."""
        request, kind = self.request, self._kind
        if self._is_of_client:
            check_named(request)
        named = kind.named(self._image, request)
        things, ready = kind.things(self._image, named, self._settings)
        groups = _divided(things, self._weight_max)
        requests = [kind.part(named, [things[number] for number in group]) for group in groups]
        may_be_too_much = sum(thing.records for thing in things) > RECORDS_PER_REQUEST_MAX
        trials = [_trial(each) for each in requests] if self._is_of_client and may_be_too_much else []

        def join(responses: list[Any]) -> Any:
            joined = kind.join(named, groups, responses, ready)
            return joined if named is request else kind.of_all(joined)

        return Parts(requests, trials, join)

    def refuse(self, error: KafkaError) -> Any:
        """The response with one error for all of the request's things."""
        return refusal(self.request, error.code, error.message)


def _trial(part: Any) -> Trial:
    return Trial(attrs.evolve(part, validate_only=False) if hasattr(part, "validate_only") else part)


def long_request(
    image: MetadataImage, request: Any, settings: ControllerSettings, weight_max: int = PART_WEIGHT_MAX
) -> LongRequest | None:
    """The request as a long one, if it weighs more than one part. None, as nearly always, if it is decided at
    once.
    """
    kind = _KINDS.get(type(request))
    if kind is None:
        return None
    weight = 0
    for each in kind.weights(image, request, settings):
        weight += each
        if weight > weight_max:
            of_client = not isinstance(request, _OF_NODES)
            return LongRequest(request, image, settings, kind, of_client, weight_max)
    return None


@attrs.frozen
class _Thing:
    """A thing of a request. Things with the same key have to be judged together; None is the key of a thing that
    stands alone.
    """

    value: Any
    key: Hashable = None
    weight: int = 1
    records: int = 1
    """The records that are written for it, at most."""
    path: tuple[int, ...] = ()
    """The positions of the lists around it, from the outermost in."""


Ready: TypeAlias = Sequence[Any]
"""Results that need no decision."""
Groups: TypeAlias = Sequence[Sequence[int]]
"""The numbers of the things of each part."""


def _divided(things: Sequence[_Thing], weight_max: int) -> list[list[int]]:
    """The numbers of the things of each part. An empty request is one part."""
    groups: list[list[int]] = [[]]
    home: dict[Hashable, list[int]] = {}
    weight = 0
    for number, thing in enumerate(things):
        if thing.key is not None and thing.key in home:
            home[thing.key].append(number)
            continue
        if weight and weight + thing.weight > weight_max:
            groups.append([])
            weight = 0
        weight += thing.weight
        groups[-1].append(number)
        if thing.key is not None:
            home[thing.key] = groups[-1]
    return groups


class _Kind(ABC):
    """The division of one kind of request into parts, and the joining of their responses."""

    @abstractmethod
    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        """The rough weights of its things. They are read only until their sum is too much for one part."""

    def named(self, image: MetadataImage, request: Any) -> Any:
        """The request itself if it names its things. If it means all, a request that names all."""
        return request

    @abstractmethod
    def things(
        self, image: MetadataImage, request: Any, settings: ControllerSettings
    ) -> tuple[list[_Thing], Ready]:
        """The things of the request. Raises `KafkaError` for a request that is refused as a whole."""

    @abstractmethod
    def part(self, request: Any, things: Sequence[_Thing]) -> Any:
        """A request that names only these things."""

    @abstractmethod
    def join(self, request: Any, groups: Groups, responses: Sequence[Any], ready: Ready) -> Any:
        """The responses of all parts as one."""

    def of_all(self, response: Any) -> Any:
        """The response to a request that means all, made from the response to one that names all."""
        return response


def _in_place(groups: Groups, found: Sequence[Sequence[Any]]) -> list[Any]:
    """The results of all things, by their numbers."""
    placed = (
        pair for group, some in zip(groups, found, strict=True) for pair in zip(group, some, strict=True)
    )
    return [result for _, result in sorted(placed, key=lambda pair: pair[0])]


# -- things in one list -------------------------------------------------------------------------------------------


class _Topics(_Kind):
    """Topics, with results in `results`: those of a part together, as the controller orders them."""

    def __init__(self, results: str) -> None:
        self._results = results

    def part(self, request: Any, things: Sequence[_Thing]) -> Any:
        return attrs.evolve(request, topics=[thing.value for thing in things])

    def join(self, request: Any, groups: Groups, responses: Sequence[Any], ready: Ready) -> Any:
        results = [each for response in responses for each in getattr(response, self._results)]
        waits_ms = max(response.throttle_time_ms for response in responses)
        return attrs.evolve(responses[0], throttle_time_ms=waits_ms, **{self._results: [*results, *ready]})


class _NewTopics(_Topics):
    """The division of CreateTopics by the topics that it makes."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (_new_topic_weight(each, settings) for each in request.topics)

    def things(
        self, image: MetadataImage, request: Any, settings: ControllerSettings
    ) -> tuple[list[_Thing], Ready]:
        check_partitions_asked(request, settings)
        weights = [_new_topic_weight(each, settings) for each in request.topics]
        things = [
            _Thing(each, each.name, weight, weight)
            for each, weight in zip(request.topics, weights, strict=True)
        ]
        return things, ()


def _new_topic_weight(topic: Any, settings: ControllerSettings) -> int:
    return 1 + len(topic.configs) + partitions_asked(topic, settings)


class _GrowingTopics(_Topics):
    """CreatePartitions: a topic with which the request would write too much is refused, those after it are not."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (_growth_weight(image, each) for each in request.topics)

    def things(
        self, image: MetadataImage, request: Any, settings: ControllerSettings
    ) -> tuple[list[_Thing], Ready]:
        counts = Counter(topic.name for topic in request.topics)
        things, refused = [], []
        left = RECORDS_PER_REQUEST_MAX
        for topic in request.topics:
            asked = new_partitions_asked(image, topic) if counts[topic.name] == 1 else 0
            if asked > left:
                error = too_many_partitions()
                refused.append(CreatePartitionsTopicResult(topic.name, error.code, error.message))
            else:
                left -= asked
                things.append(_Thing(topic, topic.name, _growth_weight(image, topic), asked))
        return things, refused


def _growth_weight(image: MetadataImage, topic: Any) -> int:
    return 1 + max(len(topic.assignments or ()), new_partitions_asked(image, topic))


class _GoneTopics(_Topics):
    """DeleteTopics: by names in one field or in another, or by ids. A name and the id of the same topic are judged
    together."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (len(request.topic_names) + len(request.topics),)

    def things(
        self, image: MetadataImage, request: Any, settings: ControllerSettings
    ) -> tuple[list[_Thing], Ready]:
        def key(name: str) -> Hashable:
            topic: TopicImage | None = image.topics.get(name)
            return name if topic is None else topic.topic_id

        things = [_Thing(name, key(name)) for name in request.topic_names]
        things += [
            _Thing(each, each.topic_id if each.name is None else key(each.name)) for each in request.topics
        ]
        return things, ()

    def part(self, request: Any, things: Sequence[_Thing]) -> Any:
        names = [thing.value for thing in things if isinstance(thing.value, str)]
        topics = [thing.value for thing in things if not isinstance(thing.value, str)]
        return attrs.evolve(request, topic_names=names, topics=topics)


class _Resources(_Kind):
    """AlterConfigs and IncrementalAlterConfigs: a result for each resource, in their order."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (1 + len(each.configs) for each in request.resources)

    def things(
        self, image: MetadataImage, request: Any, settings: ControllerSettings
    ) -> tuple[list[_Thing], Ready]:
        things = [
            _Thing(each, (each.resource_type, each.resource_name), 1 + len(each.configs), len(each.configs))
            for each in request.resources
        ]
        return things, ()

    def part(self, request: Any, things: Sequence[_Thing]) -> Any:
        return attrs.evolve(request, resources=[thing.value for thing in things])

    def join(self, request: Any, groups: Groups, responses: Sequence[Any], ready: Ready) -> Any:
        results = _in_place(groups, [response.responses for response in responses])
        return attrs.evolve(responses[0], responses=results)


# -- partitions in topics -----------------------------------------------------------------------------------------


class _Partitions(_Kind):
    """Partitions in topics, `fields` and `results` being the lists of request and response from the outermost in.

    `outer_result` gives the result around others, by what was asked: a topic's, a directory's.
    """

    def __init__(
        self,
        fields: tuple[str, ...],
        results: tuple[str, ...],
        *outer_results: Callable[[Any, list[Any]], Any],
        key: Callable[[Any, Any], Hashable] = lambda topic, partition: None,
        refused_have_results: bool,
    ) -> None:
        self._fields = fields
        self._results = results
        self._outer_results = outer_results
        self._key = key
        self._refused_have_results = refused_have_results

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        if len(self._fields) == 2:
            return (1 + len(each.partitions) for each in getattr(request, self._fields[0]))
        return (1 + len(each.partitions) for outer in request.directories for each in outer.topics)

    def things(
        self, image: MetadataImage, request: Any, settings: ControllerSettings
    ) -> tuple[list[_Thing], Ready]:
        return list(self._walk(request, ())), ()

    def _walk(self, outer: Any, path: tuple[int, ...]) -> Iterator[_Thing]:
        values = getattr(outer, self._fields[len(path)])
        if len(path) == len(self._fields) - 1:
            for value in values:
                yield _Thing(value, self._key(outer, value), path=path)
        else:
            for number, value in enumerate(values):
                yield from self._walk(value, (*path, number))

    def part(self, request: Any, things: Sequence[_Thing]) -> Any:
        return self._narrowed(request, things, 0) if things else request

    def _narrowed(self, outer: Any, things: Sequence[_Thing], depth: int) -> Any:
        """A copy that holds these things, which are in its order."""
        field = self._fields[depth]
        if depth == len(self._fields) - 1:
            return attrs.evolve(outer, **{field: [thing.value for thing in things]})
        values = getattr(outer, field)
        within: dict[int, list[_Thing]] = {}
        for thing in things:
            within.setdefault(thing.path[depth], []).append(thing)
        some = [self._narrowed(values[number], those, depth + 1) for number, those in within.items()]
        return attrs.evolve(outer, **{field: some})

    def join(self, request: Any, groups: Groups, responses: Sequence[Any], ready: Ready) -> Any:
        first = next((response for response in responses if response.error_code), responses[0])
        if first.error_code and not self._refused_have_results:
            return first
        found = [list(self._told(response, 0)) for response in responses]
        answers = self._around(request, iter(_in_place(groups, found)), 0)
        return attrs.evolve(first, **{self._results[0]: answers})

    def _told(self, outer: Any, depth: int) -> Iterator[Any]:
        values = getattr(outer, self._results[depth])
        if depth == len(self._results) - 1:
            yield from values
        else:
            for value in values:
                yield from self._told(value, depth + 1)

    def _around(self, outer: Any, answers: Iterator[Any], depth: int) -> list[Any]:
        """The results of all that is in `outer`: answers are taken in the order of the request."""
        values = getattr(outer, self._fields[depth])
        if depth == len(self._fields) - 1:
            return list(islice(answers, len(values)))
        result = self._outer_results[depth]
        return [result(value, self._around(value, answers, depth + 1)) for value in values]


class _Elections(_Partitions):
    """ElectLeaders: of the partitions that are named, or of all."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        if request.topic_partitions is None:
            return (1 + len(topic.partitions) for topic in image.topics.values())
        return super().weights(image, request, settings)

    def named(self, image: MetadataImage, request: Any) -> Any:
        if request.topic_partitions is not None:
            return request
        topics = [TopicPartitions(name, list(image.topics[name].partitions)) for name in sorted(image.topics)]
        return attrs.evolve(request, topic_partitions=topics)

    def of_all(self, response: Any) -> Any:
        """The answer has only the partitions whose leader is not the one that was asked for."""
        if response.error_code:
            return attrs.evolve(response, replica_election_results=[])
        results = [
            ReplicaElectionResult(
                topic.topic,
                [each for each in topic.partition_result if each.error_code != ErrorCode.ELECTION_NOT_NEEDED],
            )
            for topic in response.replica_election_results
        ]
        return attrs.evolve(response, replica_election_results=results)


_OF_NODES = (isr.AlterPartitionRequest, assigning.AssignReplicasToDirsRequest)
"""Nodes ask for as many things as they have. Their requests are neither limited nor tried."""

_KINDS: dict[type, _Kind] = {
    CreateTopicsRequest: _NewTopics("topics"),
    CreatePartitionsRequest: _GrowingTopics("results"),
    DeleteTopicsRequest: _GoneTopics("responses"),
    absolute.AlterConfigsRequest: _Resources(),
    incremental.IncrementalAlterConfigsRequest: _Resources(),
    ElectLeadersRequest: _Elections(
        ("topic_partitions", "partitions"),
        ("replica_election_results", "partition_result"),
        lambda topic, results: ReplicaElectionResult(topic.topic, results),
        refused_have_results=True,
    ),
    moving.AlterPartitionReassignmentsRequest: _Partitions(
        ("topics", "partitions"),
        ("responses", "partitions"),
        lambda topic, results: moving.ReassignableTopicResponse(topic.name, results),
        key=lambda topic, partition: (topic.name, partition.partition_index),
        refused_have_results=True,
    ),
    isr.AlterPartitionRequest: _Partitions(
        ("topics", "partitions"),
        ("topics", "partitions"),
        lambda topic, results: isr.AlterPartitionResponseTopicData(topic.topic_id, results),
        refused_have_results=False,
    ),
    assigning.AssignReplicasToDirsRequest: _Partitions(
        ("directories", "topics", "partitions"),
        ("directories", "topics", "partitions"),
        lambda directory, results: assigning.AssignReplicasToDirsResponseDirectoryData(directory.id, results),
        lambda topic, results: assigning.AssignReplicasToDirsResponseTopicData(topic.topic_id, results),
        key=lambda topic, partition: (topic.topic_id, partition.partition_index),
        refused_have_results=False,
    ),
}
