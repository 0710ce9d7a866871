"""The protocol's tables, the sources generated from them, and facts on which clients depend."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import attrs
import pytest

from odradek.wire import api
from odradek.wire.api import ApiKey
from odradek.wire.codecs import codec_plan
from odradek.wire.errors import ErrorCode, KafkaError, LocalProtocolError
from odradek.wire.schema import generate, table
from odradek.wire.structure import Structure, kafka, version_range

PACKAGE = Path(generate.__file__).parent.parent


def test_generated_sources_are_what_the_tables_say() -> None:
    """The generated sources match the tables."""
    assert generate.stale_files() == []


def test_check_names_a_stale_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The generator's option `--check` fails and names the generated source that was edited."""
    sources = generate.sources()
    sources[PACKAGE / "messages" / "fetch.py"] += "# edited\n"
    monkeypatch.setattr(generate, "sources", lambda: sources)
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err.startswith("messages/fetch.py: differs")


def test_formatter_leaves_generated_sources_alone() -> None:
    """`ruff format` does not change the generated sources."""
    if find_spec("ruff") is None:
        pytest.skip("ruff is not installed (the extra dev)")
    paths = [str(path) for path in generate.sources()]
    result = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_fields_are_in_snake_case() -> None:
    """Field names are converted to snake case, and KRaft is one word."""
    assert generate.snake_case("TransactionalId") == "transactional_id"
    assert generate.snake_case("TimeoutMs") == "timeout_ms"
    assert generate.snake_case("KRaftVersionFeature") == "kraft_version_feature"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", (3, 3)), ("3-7", (3, 7)), ("3+", (3, 32767)), ("none", (0, -1)), ("", (0, -1))],
)
def test_version_ranges(text: str, expected: tuple[int, int]) -> None:
    """Kafka's notation of version ranges is parsed."""
    assert version_range(text) == expected


def test_messages_of_an_api_have_its_versions() -> None:
    """Request and response have the same versions as advertised by ApiVersions, including unstable ones."""
    for fact in table.apis():
        for cls in (api.request_class(fact.key), api.response_class(fact.key)):
            assert fact.key == cls.API_KEY
            assert cls.VALID_VERSIONS == fact.versions == api.api_versions(fact.key, unstable=True)
            assert fact.flexible_since == cls.FLEXIBLE_SINCE
        assert api.request_class(fact.key).__name__ == f"{fact.name}Request"
        assert api.response_class(fact.key).__name__ == f"{fact.name}Response"
        assert fact.latest_version_unstable == api.request_class(fact.key).LATEST_VERSION_UNSTABLE


def test_api_keys_are_those_of_the_scope() -> None:
    """The tables have all APIs of Kafka 4.3, except those of share and streams groups (76-79, 83-92)."""
    keys = {*range(4), *range(8, 76), 80, 81, 82}
    assert {int(key) for key in ApiKey} == keys


@pytest.mark.parametrize(
    ("key", "versions"),
    [
        (ApiKey.PRODUCE, (3, 13)),
        (ApiKey.FETCH, (4, 18)),
        (ApiKey.METADATA, (0, 13)),
        (ApiKey.JOIN_GROUP, (0, 9)),
        (ApiKey.API_VERSIONS, (0, 4)),
        (ApiKey.OFFSET_FETCH, (1, 10)),
        (ApiKey.INIT_PRODUCER_ID, (0, 5)),
        (ApiKey.ALTER_PARTITION, (2, 3)),
        (ApiKey.BROKER_HEARTBEAT, (0, 2)),
    ],
)
def test_versions_are_those_of_kafka_4_3(key: ApiKey, versions: tuple[int, int]) -> None:
    """The advertised versions are those of Kafka 4.3, without unstable ones. Clients infer the broker's release from
    them."""
    assert api.api_versions(key) == versions


def test_unstable_version_needs_its_flag() -> None:
    """InitProducerId 6 (two-phase commit) is advertised only if unstable versions are enabled."""
    assert api.api_versions(ApiKey.INIT_PRODUCER_ID, unstable=True) == (0, 6)
    assert [key for key in ApiKey if api.APIS[key].latest_version_unstable] == [ApiKey.INIT_PRODUCER_ID]


def test_produce_is_advertised_from_zero() -> None:
    """Produce is advertised from version 0, because old librdkafka otherwise takes the broker for too old to compress
    (KAFKA-18659)."""
    advertised = {key: (first, last) for key, first, last in api.advertised_versions("broker")}
    assert advertised[ApiKey.PRODUCE] == (0, 13)
    assert advertised[ApiKey.INIT_PRODUCER_ID] == (0, 5)
    assert ApiKey.VOTE not in advertised
    assert ApiKey.DESCRIBE_QUORUM in advertised


def test_controller_listener_has_its_own_apis() -> None:
    """The controllers' listener has APIs of the quorum and of brokers' lifecycle, but none for clients' data."""
    advertised = [key for key, _, _ in api.advertised_versions("controller")]
    assert ApiKey.VOTE in advertised
    assert ApiKey.FETCH in advertised
    assert ApiKey.PRODUCE not in advertised
    assert advertised == sorted(advertised)


def test_response_header_of_api_versions_is_always_0() -> None:
    """The header of an ApiVersions response always has version 0, so that any client can read it (KIP-511)."""
    for version in (0, 3, 4, 99):
        assert api.response_header_version(ApiKey.API_VERSIONS, version) == 0
    assert api.request_header_version(ApiKey.API_VERSIONS, 2) == 1
    assert api.request_header_version(ApiKey.API_VERSIONS, 3) == 2


def test_header_versions_follow_flexible_versions() -> None:
    """Flexible versions have request header 2 and response header 1, others 1 and 0 (KIP-482)."""
    for key in ApiKey:
        since = api.request_class(key).FLEXIBLE_SINCE
        first, last = api.api_versions(key, unstable=True)
        for version in range(first, last + 1):
            flexible = since is not None and version >= since
            assert api.request_header_version(key, version) == 1 + flexible
            assert api.response_header_version(key, version) == (flexible and key != ApiKey.API_VERSIONS)
    assert api.request_header_version(ApiKey.SASL_HANDSHAKE, 1) == 1
    assert api.request_header_version(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0) == 2


def test_unknown_api_is_our_own_mistake() -> None:
    """Looking up an unknown API raises LocalProtocolError, because keys from the network are checked before."""
    with pytest.raises(LocalProtocolError):
        api.api_versions(4)
    with pytest.raises(LocalProtocolError):
        api.request_class(999)


def test_error_codes() -> None:
    """Error codes, messages and retriability are those of Kafka."""
    assert len(ErrorCode) == len(table.errors())
    assert sorted(ErrorCode) == list(range(-1, 137))
    for fact in table.errors():
        code = ErrorCode(fact.code)
        assert (code.name, code.message, code.retriable) == (fact.name, fact.text, fact.retriable)
    assert ErrorCode.NONE.message == ""
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == 6
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert ErrorCode.UNSUPPORTED_VERSION == 35
    assert not ErrorCode.UNSUPPORTED_VERSION.retriable
    assert ErrorCode.REBOOTSTRAP_REQUIRED == 129
    assert sum(code.retriable for code in ErrorCode) == 32


def test_kafka_error_has_kafkas_text_unless_given_another() -> None:
    """A KafkaError has Kafka's message for its code, unless another is given."""
    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert error.message == "This server does not host this topic-partition."
    assert KafkaError(ErrorCode.INVALID_REQUEST, "no topics").message == "no topics"
    assert str(KafkaError(ErrorCode.INVALID_REQUEST, "no topics")) == "INVALID_REQUEST: no topics"


def test_imports_are_lazy() -> None:
    """`odradek.wire.api` and `odradek.wire.codec` import neither messages nor attrs, so command-line tools start
    quickly."""
    code = "import sys, odradek.wire.api, odradek.wire.codec; print([m for m in sys.modules if m.startswith(('odradek.wire.messages', 'attr'))])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert result.stdout.strip() == "[]"


def test_defaults_are_kafkas() -> None:
    """Every field has the default of Kafka's schema, or else the zero of its type."""
    from odradek.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData
    from odradek.wire.messages.metadata_records import PartitionChangeRecord

    assert FetchRequest().max_bytes == 0x7FFFFFFF
    assert FetchRequest().replica_state.replica_id == -1
    assert FetchRequest().cluster_id is None
    assert FetchPartition().high_watermark == 2**63 - 1
    assert PartitionData().records is None
    assert PartitionData().aborted_transactions == []
    assert PartitionChangeRecord().leader == -2
    assert PartitionChangeRecord().isr is None


def test_arrays_of_defaults_are_not_shared() -> None:
    """Default arrays and structures are not shared between messages, which are mutable."""
    from odradek.wire.messages.fetch import FetchRequest

    first, second = FetchRequest(), FetchRequest()
    assert first.topics is not second.topics
    assert first.replica_state is not second.replica_state


def test_messages_compare_by_value_and_do_not_hash() -> None:
    """Messages are compared by value and cannot be hashed, because they are mutable."""
    from odradek.wire.messages.fetch import FetchTopic, ForgottenTopic

    assert FetchTopic("a") == FetchTopic("a")
    assert FetchTopic("a") != FetchTopic("b")
    assert FetchTopic("a") != ForgottenTopic("a")
    assert repr(ForgottenTopic("a", b"", [1])) == "ForgottenTopic(topic='a', topic_id=b'', partitions=[1])"
    with pytest.raises(TypeError, match="unhashable"):
        hash(FetchTopic("a"))


def test_elements_without_size_are_refused() -> None:
    """An array whose elements take no bytes is refused in planning, because its count would be unbounded."""

    @attrs.define
    class Later(Structure):
        number: int = attrs.field(default=0, metadata=kafka("int32", "1+"))

    @attrs.define
    class Holder(Structure):
        elements: list[Later] = attrs.field(factory=list, metadata=kafka([Later], "0+"))

    sizes = []
    for version, flexible in ((1, False), (0, True)):
        (field,) = codec_plan.planned_fields(Holder, version, flexible)
        sizes.append(codec_plan.element_size_min(field, version, flexible))
    assert sizes == [4, 1]
    (field,) = codec_plan.planned_fields(Holder, 0, False)
    with pytest.raises(LocalProtocolError):
        codec_plan.element_size_min(field, 0, False)
