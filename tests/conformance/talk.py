"""One conversation of the corpus with a server, and its answers in a form that two servers can share.

A case asks; every answer becomes plain JSON with the fields of its version. What must differ between two servers
becomes a name: topic ids, producer ids, session ids, the port, the present time. Lists whose order means nothing
are sorted. A connection that the server closes is an answer, too: "closed".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.node.raw_client import RawClient
from wire.api import ApiKey
from wire.errors import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.record_batch import HEADER_SIZE, parse_header
from wire.structure import ZERO_UUID, Structure, WireField, version_range

NOW_TOLERANCE_MS = 120_000
EARLIEST = -2
ANSWER_SECONDS_MAX = 15.0
_UNTOLD = frozenset(("throttle_time_ms", "finalized_features_epoch"))
_ORDERED = frozenset(("synonyms", "replica_nodes", "isr_nodes"))
_PRESENT = frozenset(("timestamp", "log_append_time_ms"))

Case = Callable[["Talk"], None]
CORPUS: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Put a conversation into the corpus."""

    def enter(conversation: Case) -> Case:
        if name in CORPUS:
            raise ValueError(f"two cases are named {name!r}")
        CORPUS[name] = conversation
        return conversation

    return enter


class Talk:
    """What a case may do. `tag` makes topic names fresh; answers show it as `~`."""

    def __init__(self, bootstrap: str, tag: str) -> None:
        self.bootstrap = bootstrap
        self.tag = tag
        self.port = int(bootstrap.rpartition(":")[2])
        self.answers: list[Any] = []
        self._client = RawClient(bootstrap, ANSWER_SECONDS_MAX)
        self._names: dict[object, str] = {ZERO_UUID: "none", bytes(range(16)): "nobody's"}

    def close(self) -> None:
        self._client.__exit__()

    def name(self, stem: str) -> str:
        """A topic name of this run."""
        return f"{stem}-{self.tag}"

    def topic(self, stem: str, partitions: int = 1, **configs: str) -> tuple[str, bytes]:
        """Create a topic, wait until it has leaders; its name and id. Not part of the answers."""
        name = self.name(stem)
        settings = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        created = self._client.request(
            CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], settings)], 10_000), 7
        )
        assert not created.topics[0].error_code, created
        return name, self.wait_for_topic(name)

    def wait_for_topic(self, name: str) -> bytes:
        """The id of a topic, as soon as all its partitions are led: by the metadata, and in fact."""
        for _ in range(1_000):
            request = MetadataRequest([MetadataRequestTopic(ZERO_UUID, name)], False)
            found = self._client.request(request, 12).topics[0]
            if not found.error_code and all(p.leader_id >= 0 for p in found.partitions):
                self._names.setdefault(found.topic_id, f"id of {name}")
                indexes = [p.partition_index for p in found.partitions]
                asked = [ListOffsetsPartition(index, -1, EARLIEST) for index in indexes]
                answer = self._client.request(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, asked)]), 7)
                if not any(p.error_code for p in answer.topics[0].partitions):
                    return bytes(found.topic_id)
            time.sleep(0.005)
        raise TimeoutError(f"{name} has no leader")

    def ask(self, message: Any, version: int, note: Callable[[Any], Any] | None = None) -> Any:
        """Send, keep the answer (or what `note` makes of it) for the comparison, and return it decoded."""
        try:
            response = self._client.request(message, version)
        except ConnectionError:
            self.reconnect()
            self.answers.append("closed")
            return None
        self.answers.append(self.told(note(response) if note else response, version))
        return response

    def send(self, data: bytes | bytearray, api_key: int, version: int) -> Any:
        """Send a frame made by hand."""
        self._client.send(data)
        try:
            response = self._client.receive(api_key, version)
        except ConnectionError:
            self.reconnect()
            self.answers.append("closed")
            return None
        self.answers.append(self.told(response, version))
        return response

    def ask_silently(self, message: Any, version: int) -> Any:
        """A step on the way, not compared."""
        return self._client.request(message, version)

    def without_answer(self, message: Any, version: int) -> None:
        """Send a request that gets no answer (acks=0); what is kept is whether the connection lives on."""
        from tests.node.raw_client import frame
        from wire.messages.api_versions import ApiVersionsRequest

        self._client.send(frame(message, version))
        try:
            self._client.request(ApiVersionsRequest("s", "1"), 0)
            self.answers.append("no answer")
        except ConnectionError:
            self.reconnect()
            self.answers.append("closed")

    def reconnect(self) -> None:
        self._client.__exit__()
        self._client = RawClient(self.bootstrap, ANSWER_SECONDS_MAX)

    # -- making answers comparable --------------------------------------------------------------------------------

    def told(self, value: Any, version: int) -> Any:
        """Plain data for JSON."""
        if not isinstance(value, Structure):
            return value
        result: dict[str, Any] = {}
        for attribute in value.__attrs_attrs__:
            fact: WireField = attribute.metadata["kafka"]
            low, high = version_range(fact.versions)
            if low <= version <= high and attribute.name not in _UNTOLD:
                result[attribute.name] = self._field(
                    attribute.name, fact, getattr(value, attribute.name), version
                )
        return result

    def _field(self, name: str, fact: WireField, value: Any, version: int) -> Any:
        if fact.type == "records":
            return None if value is None else self._batches(value)
        if name.endswith("_features"):
            return "FEATURES"
        if name == "cluster_id" and value:
            return "CLUSTER"
        if isinstance(value, list):
            items = [self.told(item, version) for item in value]
            if name not in _ORDERED:
                items.sort(key=repr)
            return items
        if isinstance(value, str):
            return self._text(value)
        if fact.type == "uuid":
            return self._text(self._names.setdefault(bytes(value), "an id"))
        if name == "session_id" and value:
            return self._names.setdefault(("session", value), "a session")
        if name == "producer_id" and value >= 0:
            return "a producer"
        if name == "port":
            return "PORT" if value == self.port else value
        if name in _PRESENT and abs(value - time.time() * 1000) < NOW_TOLERANCE_MS:
            return "NOW"
        return self.told(value, version)

    def _text(self, text: str) -> str:
        return text.replace(self.tag, "~").replace(str(self.port), "PORT")

    def _batches(self, data: bytes | memoryview) -> list[str]:
        """One line per batch. A last one that is cut by the limits is left out, as clients do."""
        shown = []
        position, whole = 0, bytes(data)
        while len(whole) - position >= HEADER_SIZE:
            header = parse_header(whole, position)
            if position + header.size > len(whole):
                break
            position += header.size
            until = header.max_timestamp
            shown.append(
                f"{header.base_offset}..{header.last_offset} epoch {header.partition_leader_epoch}"
                f" attributes {header.attributes} sequence {header.base_sequence}"
                f" until {'NOW' if abs(until - time.time() * 1000) < NOW_TOLERANCE_MS else until}"
            )
        return shown


def wait_until_ready(bootstrap: str) -> None:
    """Wait until the server gives out producer ids.

    A Kafka that has just started serves everything else before its first block of ids has come from the
    controller, and answers InitProducerId with COORDINATOR_LOAD_IN_PROGRESS until then.
    """
    with RawClient(bootstrap, ANSWER_SECONDS_MAX) as client:
        for _ in range(1_000):
            answer = client.request(InitProducerIdRequest(None, 60_000), 4)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return
            time.sleep(0.005)
    raise TimeoutError(f"{bootstrap} has no producer ids")


def hold(bootstrap: str, tag: str, names: Sequence[str] = ()) -> dict[str, list[Any]]:
    """All conversations (or the named ones) with a server: name of the case -> its answers."""
    wait_until_ready(bootstrap)
    answers: dict[str, list[Any]] = {}
    for name in names or CORPUS:
        talk = Talk(bootstrap, tag)
        try:
            CORPUS[name](talk)
        except ConnectionError:
            talk.answers.append("closed unasked")
        except TimeoutError as error:
            raise TimeoutError(f"no answer in the case {name!r} after {talk.answers}") from error
        finally:
            talk.close()
        answers[name] = talk.answers
    return answers


__all__ = ["CORPUS", "ApiKey", "Talk", "case", "hold"]
