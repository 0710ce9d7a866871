"""Produce: batches that are appended, and batches that are refused."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import partial

from odradek.wire.api import ApiKey
from odradek.wire.batches.compression import CompressionType
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.record_batch import RecordBatchBuilder
from tests.conformance.asking.batches import Batch, batch, patched
from tests.conformance.asking.prepared import NEIGHBOURS, ask_all, prepared_case
from tests.conformance.asking.talk import Talk, case
from tests.conformance.asking.transactions import COMMIT, END, STATES, V1, V2, Producer, in_state

NOBODYS_ID = bytes(range(16))
DAY_MS = 86_400_000


def produce(
    talk: Talk,
    topic: str,
    data: Batch,
    *,
    version: int = 9,
    acks: int = -1,
    topic_id: bytes = bytes(16),
    at: int = 0,
) -> None:
    """Send a batch, and keep the answer without its text, which differs from Kafka's."""
    sent = [TopicProduceData(topic, topic_id, [PartitionProduceData(at, data)])]
    request = ProduceRequest(None, acks, 5_000, sent)

    def without_text(response: object) -> object:
        for answered in response.responses:  # type: ignore[attr-defined]  # a ProduceResponse
            for answer in answered.partition_responses:
                answer.error_message = None
                for error in answer.record_errors:
                    error.batch_index_error_message = None
        return response

    if acks == 0:
        talk.without_answer(request, version)
    else:
        talk.ask(request, version, without_text)


def _versions(talk: Talk, *, version: int) -> None:
    name, topic_id = talk.topic(f"produce{version}")
    for acks in (-1, 1, 0, 2, -2):
        produce(talk, name, batch(), version=version, acks=acks, topic_id=topic_id)
    produce(talk, name, batch(), version=version, topic_id=topic_id, at=5)
    produce(talk, talk.name("unknown"), batch(), version=version, topic_id=NOBODYS_ID)
    produce(talk, name, batch(compression_type=CompressionType.ZSTD), version=version, topic_id=topic_id)


for _version in range(3, 14):
    case(f"produce v{_version}")(partial(_versions, version=_version))


def _one(talk: Talk, *, stem: str, make: Callable[[], Batch], configs: dict[str, str]) -> None:
    """Send one batch, then a good one. The offset of the second shows whether the first was appended."""
    name, _ = talk.topic("p-" + stem.replace(" ", "-"), **configs)
    produce(talk, name, make())
    produce(talk, name, batch(1))


def _magic(magic: int) -> bytes:
    body = (
        struct.pack(">bb", magic, 0)
        + (struct.pack(">q", 5) if magic else b"")
        + struct.pack(">ii", -1, 1)
        + b"x"
    )
    message = struct.pack(">I", 0) + body
    return struct.pack(">qi", 0, len(message)) + message


def _now() -> int:
    return int(time.time() * 1000)


# There is no case with null records: Kafka 4.3 never answers it, and our node answers INVALID_RECORD.
BATCHES: dict[str, tuple[Callable[[], Batch], dict[str, str]]] = {
    "empty records": (lambda: b"", {}),
    "two batches": (lambda: batch() + batch(), {}),
    "a cut batch": (lambda: batch()[:-5], {}),
    "a cut header": (lambda: batch()[:30], {}),
    "a tail behind": (lambda: batch() + b"\0\0\0", {}),
    "wrong checksum": (lambda: patched(17, ">I", 1, seal=False), {}),
    "more records than offsets": (lambda: patched(57, ">i", 4), {}),
    "fewer records than offsets": (lambda: patched(57, ">i", 2), {}),
    "no records": (lambda: patched(57, ">i", 0), {}),
    "negative count": (lambda: patched(57, ">i", -1), {}),
    "negative last offset": (lambda: patched(23, ">i", -1), {}),
    "a base offset": (lambda: patched(0, ">q", 7), {}),
    "a leader epoch": (lambda: patched(12, ">i", 7), {}),
    "control batch": (lambda: patched(21, ">h", 0x20), {}),
    "magic 0": (lambda: _magic(0), {}),
    "magic 1": (lambda: _magic(1), {}),
    "magic 3": (lambda: patched(16, ">b", 3), {}),
    "negative length": (lambda: patched(8, ">i", -1), {}),
    "short length": (lambda: patched(8, ">i", 20), {}),
    "too long length": (lambda: patched(8, ">i", 10_000), {}),
    "producer without sequence": (lambda: batch(producer_id=5, producer_epoch=0, base_sequence=-1), {}),
    "a producer's first batch is 0": (lambda: batch(producer_id=5, producer_epoch=0, base_sequence=0), {}),
    "a producer's first batch is 7": (lambda: batch(producer_id=5, producer_epoch=0, base_sequence=7), {}),
    "too large": (lambda: batch(value=b"x" * 2_000), {"max_message_bytes": "1000"}),
    "just small enough": (lambda: batch(1, value=b"x" * 923), {"max_message_bytes": "1000"}),
    "larger than a segment": (
        lambda: batch(value=b"x" * 400_000),
        {"segment_bytes": "1048576", "max_message_bytes": "8000000"},
    ),
    "the future": (lambda: batch(timestamp=_now() + 2 * DAY_MS), {}),
    "a future that is allowed": (
        lambda: batch(timestamp=_now() + 2 * DAY_MS),
        {"message_timestamp_after_max_ms": str(9 * DAY_MS)},
    ),
    "the past": (lambda: batch(timestamp=1000), {"message_timestamp_before_max_ms": str(DAY_MS)}),
    "no timestamp": (lambda: batch(1, timestamp=-1), {}),
    "log append time": (lambda: batch(), {"message_timestamp_type": "LogAppendTime"}),
    "the future at log append time": (
        lambda: batch(timestamp=_now() + 2 * DAY_MS),
        {"message_timestamp_type": "LogAppendTime"},
    ),
    "claims log append time": (lambda: batch(timestamp_type=1), {}),
    "claims log append time where it is": (
        lambda: batch(timestamp_type=1),
        {"message_timestamp_type": "LogAppendTime"},
    ),
    "compacted, with keys": (lambda: batch(), {"cleanup_policy": "compact"}),
    "compression by the topic": (lambda: batch(), {"compression_type": "lz4"}),
    "one policy of two": (lambda: batch(), {"cleanup_policy": "compact,delete"}),
}
for _codec in CompressionType:
    BATCHES[f"codec {_codec.name}"] = (lambda codec=_codec: batch(compression_type=codec), {})
for _label, (_make, _configs) in BATCHES.items():
    case(f"produce {_label}")(
        partial(_one, stem=_label.replace("'", "").replace(",", ""), make=_make, configs=_configs)
    )


@case("produce without keys to a compacted topic")
def _(talk: Talk) -> None:
    name, _ = talk.topic("p-keyless", cleanup_policy="compact")
    builder = RecordBatchBuilder()
    for number in range(3):
        builder.append(1_000, None if number else b"k", b"v")
    produce(talk, name, builder.build())
    produce(talk, name, batch(1))


def _sequences(talk: Talk, *, label: str, steps: list[tuple[int, int, int]]) -> None:
    name, _ = talk.topic("p-sequence-" + label.replace(" ", "-"))
    for epoch, sequence, count in steps:
        produce(talk, name, batch(count, producer_id=9_000, producer_epoch=epoch, base_sequence=sequence))


SEQUENCES = {
    "in order": [(0, 0, 3), (0, 3, 2), (0, 5, 1)],
    "duplicate": [(0, 0, 3), (0, 0, 3), (0, 3, 1)],
    "duplicate of five ago": [(0, n, 1) for n in range(6)] + [(0, 1, 1)],
    "duplicate of six ago": [(0, n, 1) for n in range(6)] + [(0, 0, 1)],
    "overlap": [(0, 0, 3), (0, 2, 3)],
    "part of a duplicate": [(0, 0, 3), (0, 0, 2)],
    "gap": [(0, 0, 3), (0, 4, 1), (0, 3, 1)],
    "new epoch from 0": [(0, 0, 3), (1, 0, 2), (1, 2, 1)],
    "new epoch not from 0": [(0, 0, 3), (1, 3, 1)],
    "old epoch": [(1, 0, 3), (0, 3, 1), (0, 0, 1)],
    "duplicate of an old epoch": [(0, 0, 3), (1, 0, 1), (0, 0, 3)],
    "wraps around": [(0, 2_147_483_646, 2), (0, 0, 1), (0, 1, 1)],
    "wraps within": [(0, 2_147_483_646, 4), (0, 2, 1)],
    "negative epoch": [(-1, 0, 1)],
}
for _label, _steps in SEQUENCES.items():
    case(f"produce sequence: {_label}")(partial(_sequences, label=_label, steps=_steps))


@case("produce to several partitions, one unknown")
def _(talk: Talk) -> None:
    name, _ = talk.topic("p-several", 2)
    data = [PartitionProduceData(index, batch()) for index in (0, 7, 1)]
    talk.ask(ProduceRequest(None, -1, 5_000, [TopicProduceData(name, bytes(16), data)]), 9)


@case("produce to nothing")
def _(talk: Talk) -> None:
    talk.ask(ProduceRequest(None, -1, 5_000, []), 9)


@case("produce a transactional batch without a transaction")
def _(talk: Talk) -> None:
    name, _ = talk.topic("p-transactional")
    produce(talk, name, batch(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True))


@case("produce of a version that is only advertised")
def _(talk: Talk) -> None:
    body = struct.pack(">hhih", ApiKey.PRODUCE, 2, 7, 3) + b"raw" + struct.pack(">hii", 1, 1000, 0)
    talk.send(struct.pack(">i", len(body)) + body, ApiKey.PRODUCE, 3)


# -- batches that are written in another form --------------------------------------------------------------------------

CODECS = (CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD)
EVERYTHING = 1 << 20


def _read_back(talk: Talk, name: str) -> None:
    wanted = [FetchPartition(0, fetch_offset=0, partition_max_bytes=EVERYTHING)]
    talk.ask(FetchRequest(max_bytes=EVERYTHING, topics=[FetchTopic(name, bytes(16), wanted)]), 11)


def _rewritten(talk: Talk, *, stem: str, configs: dict[str, str], codec: CompressionType) -> None:
    """Write batches that the broker recompresses, and read back their codec, timestamps and record count."""
    name, _ = talk.topic(f"rewritten-{stem}-{codec.name}", **configs)
    produce(talk, name, batch(compression_type=codec))
    produce(talk, name, batch(compression_type=codec, producer_id=5, producer_epoch=0, base_sequence=0))
    produce(talk, name, batch(compression_type=codec, producer_id=5, producer_epoch=0, base_sequence=0))
    _read_back(talk, name)


for _kind in ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"):
    for _codec in CODECS:
        case(f"produce {_codec.name} to a topic of {_kind}")(
            partial(_rewritten, stem=_kind, configs={"compression_type": _kind}, codec=_codec)
        )
for _codec in CODECS:
    case(f"produce {_codec.name} at log append time")(
        partial(_rewritten, stem="now", configs={"message_timestamp_type": "LogAppendTime"}, codec=_codec)
    )


def _refused_records(talk: Talk, *, codec: CompressionType, keys: tuple[bytes | None, ...]) -> None:
    """Send a batch to a compacted topic. The answer lists the indexes of records that have no key."""
    stem = f"keys-{codec.name}-" + "".join("n" if key is None else f"k{len(key)}" for key in keys)
    name, _ = talk.topic(stem, cleanup_policy="compact")
    builder = RecordBatchBuilder(compression_type=codec)
    for key in keys:
        builder.append(1_000, key, b"value")
    produce(talk, name, builder.build())
    _read_back(talk, name)


for _codec in CODECS:
    for _keys in ((b"k", b"k"), (None,), (b"k", None), (None, b"k", None), (b"", None)):
        _shown = "".join("-" if key is None else "k" for key in _keys)
        _kind = "empty keys" if b"" in _keys else f"keys {_shown}"
        case(f"produce {_codec.name} with {_kind} to a compacted topic")(
            partial(_refused_records, codec=_codec, keys=_keys)
        )


def _timestamps(talk: Talk, *, codec: CompressionType) -> None:
    """Send three records, one of which has a timestamp out of bounds."""
    name, _ = talk.topic(f"bounds-{codec.name}", message_timestamp_before_max_ms=str(DAY_MS))
    builder = RecordBatchBuilder(compression_type=codec)
    for timestamp in (_now(), 1_000, _now()):
        builder.append(timestamp, b"k", b"v")
    produce(talk, name, builder.build())
    produce(talk, name, batch(timestamp=_now() - 1_000, compression_type=codec))
    _read_back(talk, name)


for _codec in CODECS:
    case(f"produce {_codec.name} with one record from the past")(partial(_timestamps, codec=_codec))


def _sized(talk: Talk, *, codec: CompressionType, limit: int) -> None:
    """Send batches around the size limit. It applies to the bytes as sent or, after recompression, as written."""
    for kind in ("producer", "uncompressed", "zstd"):
        name, _ = talk.topic(
            f"sized-{codec.name}-{limit}-{kind}", compression_type=kind, max_message_bytes=str(limit)
        )
        produce(talk, name, batch(1, value=b"x" * 2_000, compression_type=codec))


for _codec in (CompressionType.NONE, CompressionType.ZSTD):
    for _limit in (100, 1_000, 3_000):
        case(f"produce {_codec.name} where {_limit} bytes are allowed")(
            partial(_sized, codec=_codec, limit=_limit)
        )


def _of_transactions(talk: Talk, *, state: str, client: int, version: int) -> None:
    """Produce in transactions. Leaders verify each at the coordinator (KIP-890), and since version 12 add the
    partition."""
    producer = in_state(talk, f"pt-{client}-{version}-{state.replace(' ', '-')}", state, client)
    topic_id = talk.wait_for_topic(producer.topic)

    def ask(by: int = 0, other: int = 0, **fields: int) -> None:
        producer.ask(producer.produce_request(by=by, other=other, topic_id=topic_id, **fields), version)

    for by, other in ((-1, 0), (1, 0), (0, 1)):
        ask(by, other)
    ask()
    producer.look()
    ask(sequence=producer.sequence + 5)
    ask(index=1, sequence=0)
    producer.look()
    producer.ask(producer.add_request({producer.topic: [0, 1]}), 3)
    ask(index=1, sequence=0)
    ask(index=1, sequence=0)
    ask(index=1, sequence=1)
    ask(index=1, sequence=9)
    ask(1, index=1, sequence=0)
    ask(-1, index=1, sequence=0)
    ask(index=7)
    producer.look()
    producer.ask(producer.end_request(COMMIT), END[client])
    producer.look()
    ask(index=1, sequence=2)
    producer.look()


for _state in STATES:
    for _client in (V1, V2):
        for _version in range(8, 14):
            case(f"produce v{_version} of transactional client {_client} when {_state}")(
                partial(_of_transactions, state=_state, client=_client, version=_version)
            )


def _odd_transactions(talk: Talk, *, version: int) -> None:
    """Send a transactional id without a transactional batch, the reverse, and several partitions in one request."""
    producer = in_state(talk, f"pto-{version}", "ongoing")
    topic_id = talk.wait_for_topic(producer.topic)
    plain = [PartitionProduceData(0, batch(1))]
    whole = producer.produce_request(topic_id=topic_id)
    both = [whole.topic_data[0].partition_data[0], PartitionProduceData(1, batch(1))]
    for name, data in (
        (producer.transactional_id, plain),
        (producer.transactional_id, both),
        (None, plain),
        ("", plain),
        ("", both),
    ):
        sent = [TopicProduceData(producer.topic, topic_id, data)]
        producer.ask(ProduceRequest(name, -1, 5_000, sent), version)
    producer.ask(ProduceRequest(None, -1, 5_000, whole.topic_data), version)
    producer.ask(ProduceRequest("", -1, 5_000, whole.topic_data), version)
    producer.ask(ProduceRequest(talk.name("another-id"), -1, 5_000, whole.topic_data), version)
    producer.look()
    first = producer.produce_request(topic_id=topic_id, sequence=producer.sequence)
    second = producer.produce_request(topic_id=topic_id, sequence=0, index=1)
    data = [first.topic_data[0].partition_data[0], second.topic_data[0].partition_data[0]]
    sent = [TopicProduceData(producer.topic, topic_id, data)]
    producer.ask(ProduceRequest(producer.transactional_id, -1, 5_000, sent), version)
    producer.look()


def _nameless_transaction(talk: Talk, *, version: int) -> None:
    producer = in_state(talk, f"ptn-{version}", "ongoing")
    topic_id = talk.wait_for_topic(producer.topic)
    whole = producer.produce_request(topic_id=topic_id)
    both = [PartitionProduceData(1, batch(1)), whole.topic_data[0].partition_data[0]]
    for data in (both, both[::-1]):
        producer.ask(
            ProduceRequest(None, -1, 5_000, [TopicProduceData(producer.topic, topic_id, data)]), version
        )


for _version in range(9, 14):
    case(f"produce v{_version} of a transactional batch beside others without a transactional id")(
        partial(_nameless_transaction, version=_version)
    )
    case(f"produce v{_version} of odd transactions")(partial(_odd_transactions, version=_version))


@prepared_case("produce")
def _(talk: Talk, producer: Producer) -> None:
    ask_all(
        talk,
        [
            (producer.produce_request(index=index, by=by, other=other), version)
            for version in (11, 12)
            for index in (0, 1)
            for by, other in NEIGHBOURS
        ],
    )
