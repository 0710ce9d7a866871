"""One conversation of the corpus with a server, and its answers in a form that can be compared between servers.

A case asks; every answer becomes plain JSON with the fields of its version. Values that differ between two servers
become names: topic ids, producer ids, session ids, member ids, the port, the present time. Lists whose order means
nothing are sorted. A connection that the server closes is an answer, too: "closed".

The first word of a case's name is the API that it is about; a case may hold several connections (`Talk.line`).
"""

from __future__ import annotations

import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from odradek.wire.api import ApiKey
from odradek.wire.batches.batch_header import HEADER_SIZE, parse_header
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.wire.structure import ZERO_UUID, Structure, WireField, version_range
from testkit.raw_requests import RawClient, frame
from tests.conformance.servers import find_login_listener, log_in

SHOWN_BYTES_MAX = 200
NOW_TOLERANCE_MS = 120_000
EARLIEST = -2
ANSWER_SECONDS_MAX = 15.0
COORDINATORS_ASKED = 40
"""How many transactional ids are asked about: enough for one in each partition of the topic."""
_UNTOLD = frozenset(("throttle_time_ms", "finalized_features_epoch"))
_ORDERED = frozenset(("synonyms", "replica_nodes", "isr_nodes"))
_PRESENT = frozenset(("timestamp", "log_append_time_ms", "last_timestamp", "transaction_start_time_ms"))
_TOKEN_TIMES = frozenset(
    f"{time}_timestamp{unit}" for time in ("issue", "expiry", "max") for unit in ("", "_ms")
)
_AMOUNTS = frozenset(("total_bytes", "usable_bytes"))
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

Case = Callable[["Talk"], None]
CORPUS: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Add a conversation to the corpus under a name."""

    def enter(conversation: Case) -> Case:
        if name in CORPUS:
            raise ValueError(f"two cases are named {name!r}")
        CORPUS[name] = conversation
        return conversation

    return enter


class Line:
    """One connection of a conversation. Several requests may be under way, and answers come in their order."""

    def __init__(self, talk: Talk, user: str | None = None) -> None:
        """Connect to the server, and log in if a `user` is given."""
        self._talk = talk
        self._user = user
        self._client = self._connected()
        self._sent: deque[tuple[int, int]] = deque()

    def _connected(self) -> RawClient:
        if self._user is None:
            return RawClient(self._talk.bootstrap, ANSWER_SECONDS_MAX)
        client = RawClient(self._talk.login_listener, ANSWER_SECONDS_MAX)
        log_in(client, self._user)
        return client

    def send(self, message: Any, version: int) -> None:
        """Send a request. Call `answer` or `silent_answer` for its answer."""
        self.send_frame(frame(message, version), message.API_KEY, version)

    def send_frame(self, data: bytes | bytearray, api_key: int, version: int) -> None:
        """Send a handmade frame that is answered like a request of this API and version."""
        self._talk.asked.add((api_key, version))
        self._sent.append((api_key, version))
        self._client.send(data)

    def silent_answer(self) -> Any:
        """Return the next answer, decoded, without keeping it for the comparison. Return None if the server has
        closed."""
        try:
            return self._client.receive(*self._sent.popleft())
        except ConnectionError:
            self.reconnect()
            return None

    def answer(self, note: Callable[[Any], Any] | None = None) -> Any:
        """Return the next answer, decoded. Keep it, or the result of `note`, for the comparison."""
        version = self._sent[0][1]
        response = self.silent_answer()
        self._talk.keep(response, version, note)
        return response

    def is_answered(self) -> bool:
        """Return True if a response to the oldest request comes, whatever it says."""
        self._sent.popleft()
        try:
            self._client.read_frame()
        except ConnectionError:
            self.reconnect()
            return False
        return True

    def ask(self, message: Any, version: int, note: Callable[[Any], Any] | None = None) -> Any:
        """Send a request and return its answer."""
        self.send(message, version)
        return self.answer(note)

    def ask_until(self, message: Any, version: int, reached: Callable[[Any], bool]) -> Any:
        """Repeat a request until `reached` is true of the answer, and keep only that answer."""
        for _ in range(2_000):
            self.send(message, version)
            response = self.silent_answer()
            if reached(response):
                self._talk.keep(response, version)
                return response
            time.sleep(0.005)
        raise TimeoutError(f"the awaited answer did not come; the last one was {response}")

    def reconnect(self) -> None:
        """Open a new connection. Requests on the old one are forgotten."""
        self.close()
        self._sent.clear()
        self._client = self._connected()

    def close(self) -> None:
        self._client.__exit__()


class Talk:
    """The requests of a case. `tag` makes its names unique, and answers show it as `~`."""

    def __init__(self, bootstrap: str, tag: str) -> None:
        self.bootstrap = bootstrap
        self.tag = tag
        self.port = int(bootstrap.rpartition(":")[2])
        self.answers: list[Any] = []
        self.asked: set[tuple[int, int]] = set()
        """API key and version of each request sent."""
        self._names: dict[object, str] = {ZERO_UUID: "none", bytes(range(16)): "nobody's"}
        self._lines: list[Line] = []
        self._login_listener = ""
        self._first = self.line()

    def line(self, user: str | None = None) -> Line:
        """Open another connection, which is closed with the conversation. Log in if a `user` is given."""
        self._lines.append(Line(self, user))
        return self._lines[-1]

    @property
    def login_listener(self) -> str:
        """Return the address at which users log in."""
        if not self._login_listener:
            with RawClient(self.bootstrap, ANSWER_SECONDS_MAX) as client:
                self._login_listener = find_login_listener(client)
        return self._login_listener

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def name(self, stem: str) -> str:
        """Return a topic name that is unique to this run."""
        return f"{stem}-{self.tag}"

    def topic(self, stem: str, partitions: int = 1, **configs: str) -> tuple[str, bytes]:
        """Create a topic, wait until it has leaders, and return its name and id. The answers are not kept."""
        name = self.name(stem)
        settings = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        created = self.ask_silently(
            CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], settings)], 10_000), 7
        )
        assert not created.topics[0].error_code, created
        return name, self.wait_for_topic(name)

    def wait_for_topic(self, name: str) -> bytes:
        """Return the id of a topic once all its partitions have leaders in the metadata, and the leaders answer."""
        for _ in range(1_000):
            request = MetadataRequest([MetadataRequestTopic(ZERO_UUID, name)], False)
            found = self.ask_silently(request, 12).topics[0]
            if not found.error_code and all(p.leader_id >= 0 for p in found.partitions):
                self._names.setdefault(found.topic_id, f"id of {name}")
                indexes = [p.partition_index for p in found.partitions]
                asked = [ListOffsetsPartition(index, -1, EARLIEST) for index in indexes]
                answer = self.ask_silently(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, asked)]), 7)
                if not any(p.error_code for p in answer.topics[0].partitions):
                    return bytes(found.topic_id)
            time.sleep(0.005)
        raise TimeoutError(f"{name} has no leader")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the metadata no longer has it."""
        self.ask_silently(DeleteTopicsRequest([DeleteTopicState(name, ZERO_UUID)], [], 10_000), 6)
        request = MetadataRequest([MetadataRequestTopic(ZERO_UUID, name)], False)
        for _ in range(1_000):
            if self.ask_silently(request, 12).topics[0].error_code:
                return
            time.sleep(0.005)
        raise TimeoutError(f"{name} is still there")

    def ask(self, message: Any, version: int, note: Callable[[Any], Any] | None = None) -> Any:
        """Send a request and return its decoded answer. Keep it, or the result of `note`, for the comparison."""
        return self._first.ask(message, version, note)

    def send(self, data: bytes | bytearray, api_key: int, version: int) -> Any:
        """Send a handmade frame."""
        self._first.send_frame(data, api_key, version)
        return self._first.answer()

    def is_answered(self, data: bytes, api_key: int, version: int) -> bool:
        """Send a handmade frame. Return True if a response comes, and False if the server closes."""
        self._first.send_frame(data, api_key, version)
        return self._first.is_answered()

    def note(self, text: str) -> None:
        """Add an observation to the answers."""
        self.answers.append(text)

    def ask_silently(self, message: Any, version: int) -> Any:
        """Send a request as a preparation, and return its answer without keeping it."""
        self._first.send(message, version)
        return self._first.silent_answer()

    def ask_until(self, message: Any, version: int, reached: Callable[[Any], bool]) -> Any:
        """Repeat a request until `reached` is true of the answer, and keep only that answer."""
        return self._first.ask_until(message, version, reached)

    def without_answer(self, message: Any, version: int) -> None:
        """Send a request without a response (acks=0), and keep whether the connection still works."""
        data = frame(message, version) + frame(ApiVersionsRequest("s", "1"), 0)
        self.asked.add((message.API_KEY, version))
        self._first.send_frame(data, ApiKey.API_VERSIONS, 0)
        self.answers.append("closed" if self._first.silent_answer() is None else "no answer")

    def keep(self, response: Any, version: int, note: Callable[[Any], Any] | None = None) -> None:
        """Keep an answer for the comparison. None stands for a closed connection."""
        if response is None:
            self.answers.append("closed")
        else:
            self.answers.append(self.told(note(response) if note else response, version))

    def give_name(self, text: str, name: str) -> None:
        """Show an id that the server generated as `name` from now on."""
        self._names.setdefault(text, name)

    def name_producer(self, producer_id: int, name: str) -> None:
        """Show a producer id that the server generated as `name` from now on."""
        self._names[("producer", producer_id)] = name

    # -- making answers comparable --------------------------------------------------------------------------------

    def told(self, value: Any, version: int) -> Any:
        """Turn a value into plain JSON data."""
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
        if name == "token_id" and value:
            return self._names.setdefault(("token", value), f"token {len(self._names)}")
        if name == "hmac" and value:
            return f"{len(value)} secret bytes"
        if name in _TOKEN_TIMES and value > 0:
            hours = round((value - time.time() * 1000) / 3_600_000)
            return f"in {hours} hours" if hours else "NOW"
        if name == "log_dir":
            return "DIRECTORY"
        if isinstance(value, str):
            return self._text(value)
        if fact.type == "bytes":
            return None if value is None else self._bytes(bytes(value))
        if fact.type == "uuid":
            return self._text(self._names.setdefault(bytes(value), "an id"))
        if name == "session_id" and value:
            return self._names.setdefault(("session", value), "a session")
        if name == "producer_id" and value >= 0:
            return self._names.get(("producer", value), "a producer")
        if name == "port":
            return "PORT" if value == self.port else value
        if name in _AMOUNTS and value > 0:
            return "SOME"
        if name in _PRESENT and abs(value - time.time() * 1000) < NOW_TOLERANCE_MS:
            return "NOW"
        return self.told(value, version)

    def _bytes(self, data: bytes) -> str:
        if len(data) > SHOWN_BYTES_MAX:
            return f"{len(data)} bytes of CRC {zlib.crc32(data)}"
        return self._text(data.decode("latin-1"))

    def _text(self, text: str) -> str:
        shown = text.replace(self.tag, "~").replace(str(self.port), "PORT")
        return _UUID.sub(self._uuid, shown)

    def _uuid(self, match: re.Match[str]) -> str:
        return self._names.setdefault(match[0], "an id")

    def _batches(self, data: bytes | memoryview) -> list[str]:
        """Return one line per batch. If a size limit has cut the last batch, it is left out, as by clients."""
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
    """Wait until the server assigns producer ids and has loaded its coordinators.

    Kafka answers most requests right after its start. But it must first get a block of producer ids from the
    controller. The first request for a coordinator makes its topic.
    """
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("none", topics=[])])
    with RawClient(bootstrap, ANSWER_SECONDS_MAX) as client:
        served = {entry.api_key for entry in client.request(ApiVersionsRequest("s", "1"), 3).api_keys}
        for _ in range(2_000):
            errors = [client.request(InitProducerIdRequest(None, 60_000), 4).error_code]
            if ApiKey.FIND_COORDINATOR in served:
                found = client.request(FindCoordinatorRequest(key_type=0, coordinator_keys=["none"]), 4)
                errors += [found.coordinators[0].error_code]
                errors += _errors_of_transactions(client)
            if ApiKey.OFFSET_FETCH in served:
                errors += [client.request(request, 8).groups[0].error_code]
            if not any(errors):
                return
            time.sleep(0.005)
    raise TimeoutError(f"{bootstrap} is not ready: {errors}")


def _errors_of_transactions(client: RawClient) -> list[int]:
    """Return the errors of all transaction coordinators, one for each partition of their topic."""
    found = client.request(FindCoordinatorRequest(key_type=1, coordinator_keys=["none"]), 4)
    errors = [found.coordinators[0].error_code]
    if not any(errors):
        named = [f"ready{number}" for number in range(COORDINATORS_ASKED)]
        for each in client.request(DescribeTransactionsRequest(named), 0).transaction_states:
            errors.append(0 if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else each.error_code)
    return errors


@attrs.frozen
class Held:
    """The answers of all conversations with a server."""

    answers: dict[str, list[Any]]
    """Answers by the name of the case."""
    asked: set[tuple[int, int]]
    """API key and version of every request sent."""


def hold(bootstrap: str, tag: str, names: Iterable[str]) -> Held:
    """Run the named conversations with a server. Return their answers."""
    held = Held({}, set())
    for name in names:
        talk = Talk(bootstrap, tag)
        try:
            CORPUS[name](talk)
        except ConnectionError:
            talk.answers.append("closed unasked")
        except TimeoutError as error:
            raise TimeoutError(f"no answer in the case {name!r} after {talk.answers}") from error
        finally:
            talk.close()
        held.answers[name] = talk.answers
        held.asked.update(talk.asked)
    return held


__all__ = ["CORPUS", "ApiKey", "Held", "Line", "Talk", "case", "hold", "wait_until_ready"]
