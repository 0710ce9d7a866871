"""Long requests: they are decided in parts of some milliseconds each, and the answers are joined. PURE.

A request names things (topics, resources, partitions), and its response has a result for each thing. So the
request can be split into several consecutive requests of the same kind. Each part is a decision of its own,
and other requests may be decided between two parts. If one part is refused, the other parts are still
decided.

* **Things that must be decided together are in one part.** Such things have the same key. So duplicates are
  found as if there were no parts.
* **Limits of a request are checked for the whole request**: how many things it names, and how many records it
  would write. If the sum may be too large, every part is tried before the first one is decided (`Trial`).
* **There is one result per thing**, in the order of the request. If Kafka lists refused things separately,
  each part lists them separately, too.

A row for each API says where its things are, and how answers are joined (`odradek.wire.schema.anatomy`). This
module computes the weight of each thing and its number of records, and finds the things that must be decided
together.

A part and the original request share the objects of their things. So no code may change these objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import attrs

from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX, check_named
from odradek.metadata_quorum.controller.partitions.create_partitions import (
    new_partitions_asked,
    too_many_partitions,
)
from odradek.metadata_quorum.controller.topics import check_partitions_asked, partitions_asked
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.elect_leaders import ReplicaElectionResult, TopicPartitions
from odradek.wire.schema.anatomy import Leaf, anatomy_of, refuse
from odradek.wire.structure import Message

__all__ = ["PART_WEIGHT_MAX", "LongRequest", "Parts", "Trial", "long_request"]

PART_WEIGHT_MAX = 400
"""The largest weight of one part. To decide such a part takes about 10 ms. A topic, resource or partition has
weight 1, and each thing inside it adds 1.
"""

ACCESS_WEIGHT = 2
"""The weight of an ACL or a credential. It is 2, because the replay costs as much as the decision."""


@attrs.frozen
class Trial:
    """A request that counts the records which `request` would write now, and writes nothing. It is sent
    before a long request is decided.

    The response is the number of records, or None if this node is not the active controller.
    """

    request: Message


@attrs.frozen
class Parts:
    """The parts of a long request, and the function that joins their responses."""

    requests: list[Message]
    """The parts, in the order in which they must be decided."""
    trials: list[Trial]
    """Trials that must run before the parts, because all parts together may write too many records. Otherwise
    the list is empty.
    """
    join: Callable[[list[Any]], Any]
    """A function that makes the response to the whole request from the responses to all `requests`."""


@attrs.frozen
class LongRequest:
    """A request that is decided in parts.

    `split` and `refuse` take long, but read only immutable values, so they may run in a worker.
    """

    request: Any
    _image: MetadataImage
    _settings: ControllerSettings
    _kind: _Kind
    _weight_max: int

    def split(self) -> Parts:
        """Split the request into parts. Raises `KafkaError` POLICY_VIOLATION if it names too many things."""
        request, kind, anatomy = self.request, self._kind, anatomy_of(self.request)
        is_of_client = request.API_KEY not in _OF_NODES
        if is_of_client:
            check_named(request)
        named = kind.named(self._image, request)
        things = kind.things(self._image, named, self._settings)
        groups = _divided(things, self._weight_max)
        if len(groups) == 1 and not things.ready:
            requests = [named]
        else:
            requests = [anatomy.part(named, [things.leaves[number] for number in group]) for group in groups]
        may_be_too_much = things.records > RECORDS_PER_REQUEST_MAX
        trials = [_trial(each) for each in requests] if is_of_client and may_be_too_much else []

        def join(responses: list[Any]) -> Any:
            joined = anatomy.join(named, groups, responses, things.ready)
            return joined if named is request else kind.of_all(joined)

        return Parts(requests, trials, join)

    def refuse(self, error: KafkaError) -> Any:
        """Make the response with the same error for all things of the request."""
        return refuse(self.request, error.code, error.message)


def _trial(part: Any) -> Trial:
    return Trial(attrs.evolve(part, validate_only=False) if hasattr(part, "validate_only") else part)


def long_request(
    image: MetadataImage, request: Any, settings: ControllerSettings, weight_max: int
) -> LongRequest | None:
    """Make a `LongRequest` if the request is too heavy for one part.

    Returns None if the request can be decided at once. This is so for nearly all requests.
    """
    kind = _KINDS.get(request.API_KEY)
    if kind is None:
        return None
    weight = 0
    for each in kind.weights(image, request, settings):
        weight += each
        if weight > weight_max:
            return LongRequest(request, image, settings, kind, weight_max)
    return None


@attrs.frozen
class _Things:
    """The things that a request names, with their keys and weights.

    Things with the same key must be decided together. A thing with the key None may be decided without any
    other thing.
    """

    leaves: Sequence[Leaf]
    records: int
    """The most records that all these things together can write."""
    keys: Iterable[Hashable] = repeat(None)
    weights: Iterable[int] = repeat(1)
    ready: Sequence[Any] = ()
    """Results of things that are refused without a decision."""


def _divided(things: _Things, weight_max: int) -> list[list[int]]:
    """Divide the things into parts. A part is a list of positions in the request. An empty request has one
    part.
    """
    groups: list[list[int]] = [[]]
    home: dict[Hashable, list[int]] = {}
    weight = 0
    for number, key, its_weight in zip(range(len(things.leaves)), things.keys, things.weights, strict=False):
        if key is not None and key in home:
            home[key].append(number)
            continue
        if weight and weight + its_weight > weight_max:
            groups.append([])
            weight = 0
        weight += its_weight
        groups[-1].append(number)
        if key is not None:
            home[key] = groups[-1]
    return groups


class _Kind:
    """The rules for splitting one kind of request. This base class is for requests whose things have equal
    weight and write one record each.
    """

    def __init__(self, key: Callable[[Leaf], Hashable] | None = None, *, weight: int = 1) -> None:
        self._key = key
        self._weight = weight

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        """Yield the approximate weight of each thing.

        The caller stops when the sum is too large for one part.
        """
        return (self._weight * size for size in anatomy_of(request).sizes(request))

    def named(self, image: MetadataImage, request: Any) -> Any:
        """Return the request in a form that names each thing.

        A request for all partitions (ElectLeaders) is replaced by a list of their names.
        """
        return request

    def things(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> _Things:
        """List the things that the request names.

        Raises `KafkaError` for a request that is refused as a whole.
        """
        leaves = anatomy_of(request).leaves(request)
        keys = repeat(None) if self._key is None else map(self._key, leaves)
        return _Things(leaves, len(leaves), keys, repeat(self._weight))

    def of_all(self, response: Any) -> Any:
        """Convert the response to the request that `named` has made into the response to the original request, which
        meant all things.
        """
        return response


class _NewTopics(_Kind):
    """CreateTopics: a topic's weight is the number of its partitions and configurations."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (1 + len(each.configs) + partitions_asked(each, settings) for each in request.topics)

    def things(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> _Things:
        check_partitions_asked(request, settings)
        leaves = anatomy_of(request).leaves(request)
        weights = list(self.weights(image, request, settings))
        return _Things(leaves, sum(weights), [topic.name for topic in request.topics], weights)


class _GrowingTopics(_Kind):
    """CreatePartitions: a topic that would bring the request above the limit of records is refused.

    Later topics are still tried.
    """

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (_growth_weight(image, each) for each in request.topics)

    def things(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> _Things:
        anatomy, error = anatomy_of(request), too_many_partitions()
        counts = Counter(topic.name for topic in request.topics)
        leaves, ready = [], []
        left = RECORDS_PER_REQUEST_MAX
        for leaf in anatomy.leaves(request):
            topic = leaf.value
            asked = new_partitions_asked(image, topic) if counts[topic.name] == 1 else 0
            if asked > left:
                ready.append(anatomy.refused(topic, error.code, error.message))
            else:
                left -= asked
                leaves.append(leaf)
        keys = [leaf.value.name for leaf in leaves]
        weights = [_growth_weight(image, leaf.value) for leaf in leaves]
        return _Things(leaves, RECORDS_PER_REQUEST_MAX - left, keys, weights, ready)


def _growth_weight(image: MetadataImage, topic: Any) -> int:
    return 1 + max(len(topic.assignments or ()), new_partitions_asked(image, topic))


class _GoneTopics(_Kind):
    """DeleteTopics: an entry with a topic's name and an entry with its id are decided together."""

    def things(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> _Things:
        def key(name: str) -> Hashable:
            topic: TopicImage | None = image.topics.get(name)
            return name if topic is None else topic.topic_id

        keys = [key(name) for name in request.topic_names]
        keys += [each.topic_id if each.name is None else key(each.name) for each in request.topics]
        return _Things(anatomy_of(request).leaves(request), len(keys), keys)


class _Resources(_Kind):
    """AlterConfigs and IncrementalAlterConfigs: a resource's weight is the number of its keys."""

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (1 + len(each.configs) for each in request.resources)

    def things(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> _Things:
        leaves = anatomy_of(request).leaves(request)
        keys = [(each.resource_type, each.resource_name) for each in request.resources]
        weights = list(self.weights(image, request, settings))
        return _Things(leaves, sum(weights) - len(leaves), keys, weights)


class _Entities(_Kind):
    """AlterClientQuotas: an entity's weight is the number of its quotas.

    Two entries name the same entity if they have the same (type, name) pairs, in any order.
    """

    def weights(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> Iterable[int]:
        return (1 + len(each.ops) for each in request.entries)

    def things(self, image: MetadataImage, request: Any, settings: ControllerSettings) -> _Things:
        leaves = anatomy_of(request).leaves(request)
        keys = [
            frozenset({part.entity_type: part.entity_name for part in each.entity}.items())
            for each in request.entries
        ]
        weights = list(self.weights(image, request, settings))
        return _Things(leaves, sum(weights) - len(leaves), keys, weights)


class _Elections(_Kind):
    """ElectLeaders, for the named partitions or for all."""

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
        """Return the response without the partitions that needed no election."""
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


_OF_NODES = frozenset((ApiKey.ALTER_PARTITION, ApiKey.ASSIGN_REPLICAS_TO_DIRS))
"""Requests of nodes. Such a request may name as many things as the node has. There are no limits, so no
trials are needed.
"""

_KINDS: Mapping[int, _Kind] = {
    ApiKey.CREATE_TOPICS: _NewTopics(),
    ApiKey.CREATE_PARTITIONS: _GrowingTopics(),
    ApiKey.DELETE_TOPICS: _GoneTopics(),
    ApiKey.ALTER_CONFIGS: _Resources(),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Resources(),
    ApiKey.CREATE_ACLS: _Kind(weight=ACCESS_WEIGHT),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _Kind(lambda leaf: leaf.value.name, weight=ACCESS_WEIGHT),
    ApiKey.ALTER_CLIENT_QUOTAS: _Entities(),
    ApiKey.ELECT_LEADERS: _Elections(),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _Kind(lambda leaf: (leaf.outer.name, leaf.value.partition_index)),
    ApiKey.ALTER_PARTITION: _Kind(),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _Kind(lambda leaf: (leaf.outer.topic_id, leaf.value.partition_index)),
}
