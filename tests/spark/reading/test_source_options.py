"""The source's options: names and defaults of Spark's own Kafka connector, and one clear sentence for a wrong option."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.spark import options_page
from odradek.spark.option_table import SOURCE_OPTIONS
from odradek.spark.source_options import Bound, OptionError, Query, SourceOptions, _Parser
from tests.docs.markdown import ROOT

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
TOPIC = {**SERVERS, "subscribe": "flights"}


class TestDefaults:
    def test_batch(self) -> None:
        """A batch query reads from earliest to latest by default, as in Spark's Kafka integration guide."""
        options = SourceOptions.parse(TOPIC, Query.BATCH)
        assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
        assert options.topics == ("flights",)
        assert options.fail_on_data_loss
        assert not options.include_headers
        assert options.group_id_prefix == "spark-kafka-source"
        assert options.consumer.isolation_level == "read_uncommitted"

    def test_stream(self) -> None:
        """A streaming query starts at latest by default, and its trigger waits 15 minutes at most."""
        options = SourceOptions.parse(TOPIC, Query.STREAM)
        assert options.starting.everywhere == LATEST
        assert options.trigger_delay_max == timedelta(minutes=15)
        assert options.offsets_per_trigger_max is None

    def test_names_are_known_in_any_case(self) -> None:
        """Option names are recognised in any case, because Spark passes them in lower case."""
        given = {**TOPIC, "startingoffsets": "earliest", "FAILONDATALOSS": "False", "includeHeaders": "true"}
        options = SourceOptions.parse(given, Query.STREAM)
        assert options.starting.everywhere == EARLIEST
        assert not options.fail_on_data_loss
        assert options.include_headers


class TestBounds:
    def test_the_first_of_timestamp_by_timestamp_and_offsets_counts(self) -> None:
        """startingTimestamp overrides startingOffsetsByTimestamp, which overrides startingOffsets, as in Spark's
        guide."""
        every = {
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"flights": {"0": 6}}',
            "startingOffsets": '{"flights": {"0": 7}}',
        }
        for left, expected in enumerate(
            [
                Bound("startingTimestamp", timestamp=5),
                Bound("startingOffsetsByTimestamp", timestamps={("flights", 0): 6}),
                Bound("startingOffsets", offsets={("flights", 0): 7}),
            ]
        ):
            given = dict(list(every.items())[left:])
            assert SourceOptions.parse(TOPIC | given, Query.STREAM).starting == expected

    def test_offsets_may_be_words_in_numbers(self) -> None:
        """In JSON offsets, -2 means earliest and -1 latest."""
        text = '{"a": {"0": -2, "1": -1}, "b": {"0": 23}}'
        options = SourceOptions.parse({**SERVERS, "subscribe": "a,b", "startingOffsets": text}, Query.STREAM)
        assert options.starting.offsets == {("a", 0): EARLIEST, ("a", 1): LATEST, ("b", 0): 23}

    def test_assign(self) -> None:
        """assign takes partitions by topic, as JSON."""
        options = SourceOptions.parse({**SERVERS, "assign": '{"a": [1, 0], "b": [2]}'})
        assert options.assigned == (("a", 0), ("a", 1), ("b", 2))

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("30s", 30), ("15m", 900), ("2h", 7200), ("250", 0.25), ("1500ms", 1.5), ("1d", 86400)],
    )
    def test_durations(self, text: str, seconds: float) -> None:
        """Durations take Spark's short units. A number without a unit means milliseconds."""
        options = SourceOptions.parse({**TOPIC, "maxTriggerDelay": text}, Query.STREAM)
        assert options.trigger_delay_max.total_seconds() == seconds


class TestPage:
    def test_it_is_what_the_code_says(self) -> None:
        """docs/spark-options.md matches the code; `python -m odradek.spark.options_page` regenerates it."""
        assert (ROOT / "docs" / "spark-options.md").read_text() == options_page.page()

    def test_every_option_that_is_taken_is_in_the_table(self) -> None:
        """The parser uses exactly the options of the documented table."""
        asked: set[str] = set()

        class Noted(dict[str, str]):
            def get(self, key: str, default: Any = None) -> Any:
                asked.add(key)
                return super().get(key, default)

        for query in Query:
            _Parser(Noted(TOPIC)).parse(query)
        _Parser(Noted({**SERVERS, "assign": '{"a": [0]}', "startingtimestamp": "5"})).parse(Query.STREAM)
        assert asked == {each.name.lower() for each in SOURCE_OPTIONS}


class TestKafkaKeys:
    def test_consumer_keys_take_effect_and_others_of_kafka_pass(self) -> None:
        """Kafka consumer settings take effect, and producer settings are accepted. So the source and the sink may share
        options."""
        given = {
            **TOPIC,
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "4096",
            "kafka.acks": "all",
            "kafka.group.id": "readers",
        }
        options = SourceOptions.parse(given)
        assert options.consumer.isolation_level == "read_committed"
        assert options.consumer.max_partition_fetch_bytes == 4096
        assert options.group_id == "readers"


BATCH, STREAM = Query.BATCH, Query.STREAM
REFUSED: list[tuple[Query, dict[str, str], str]] = [
    (BATCH, {}, r"kafka\.bootstrap\.servers is missing .*no option was passed at all: CREATE TABLE keeps no OPTIONS"),
    (BATCH, {"subscribe": "a"}, r"kafka\.bootstrap\.servers is missing \(HOST:PORT,HOST:PORT\)$"),
    (BATCH, SERVERS, r"one of the options assign, subscribe or subscribePattern must say what to read, and none is given$"),
    (BATCH, {**TOPIC, "assign": '{"a": [0]}'}, r"only one of .* not both assign and subscribe$"),
    (BATCH, {**SERVERS, "subscribe": " , "}, r"subscribe names no topic"),
    (BATCH, {**SERVERS, "subscribePattern": ""}, r"subscribePattern is empty"),
    (BATCH, {**SERVERS, "subscribePattern": "a("}, r"subscribePattern 'a\(' is not a regular expression"),
    (BATCH, {**SERVERS, "assign": "a"}, r"assign must be JSON like \{\"topic\": \[0, 1\]\}, not 'a'"),
    (BATCH, {**SERVERS, "assign": '{"a": [-1]}'}, r"assign must name partitions"),
    (BATCH, {**TOPIC, "startingOffsets": "latest"}, r"startingOffsets of a batch query cannot be latest"),
    (BATCH, {**TOPIC, "startingOffsets": '{"flights": {"0": -1}}'}, r"cannot be latest \(-1\): give flights-0 another offset"),
    (BATCH, {**TOPIC, "endingOffsets": "earliest"}, r"endingOffsets of a batch query cannot be earliest"),
    (BATCH, {**TOPIC, "endingOffsets": '{"flights": {"0": -2}}'}, r"cannot be earliest \(-2\): give flights-0 another offset"),
    (STREAM, {**TOPIC, "endingOffsets": "latest"}, r"endingOffsets is only for batch queries"),
    (STREAM, {**TOPIC, "endingTimestamp": "5"}, r"endingTimestamp is only for batch queries"),
    (BATCH, {**TOPIC, "startingOffsets": "first"}, r"startingOffsets must be earliest, latest or JSON like"),
    (BATCH, {**TOPIC, "startingOffsets": '{"flights": {"0": "7"}}'}, r"startingOffsets must be"),
    (BATCH, {**TOPIC, "startingOffsets": '{"flights": {"0": -3}}'}, r"startingOffsets has the invalid offset -3 for flights-0"),
    (BATCH, {**TOPIC, "startingOffsets": "{}"}, r"startingOffsets names no partition"),
    (BATCH, {**TOPIC, "startingTimestamp": "now"}, r"startingTimestamp must be a whole number of at least 0, not 'now'"),
    (BATCH, {**TOPIC, "minPartitions": "0"}, r"minPartitions must be a whole number of at least 1, not '0'"),
    (BATCH, {**TOPIC, "maxRecordsPerPartition": "-5"}, r"maxRecordsPerPartition must be a whole number"),
    (STREAM, {**TOPIC, "maxOffsetsPerTrigger": "many"}, r"maxOffsetsPerTrigger must be a whole number"),
    (
        STREAM,
        {**TOPIC, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
        r"minOffsetsPerTrigger \(6\) must not be above maxOffsetsPerTrigger \(5\)",
    ),
    (STREAM, {**TOPIC, "maxTriggerDelay": "soon"}, r"maxTriggerDelay must be a time like 30s"),
    (BATCH, {**TOPIC, "failOnDataLoss": "maybe"}, r"failOnDataLoss must be true or false, not 'maybe'"),
    (BATCH, {**TOPIC, "includeHeaders": "1"}, r"includeHeaders must be true or false"),
    (
        BATCH,
        {**TOPIC, "startingOffsetsByTimestampStrategy": "guess"},
        r"startingOffsetsByTimestampStrategy must be error or latest",
    ),
    (BATCH, {**TOPIC, "option.subscribe": "flights"}, r"^CREATE TABLE keeps no OPTIONS .*CREATE TEMPORARY VIEW"),
    (BATCH, {**TOPIC, "maxBatchBytes": "2000000000"}, r"maxBatchBytes must be .* and at most 1073741824"),
    (BATCH, {**TOPIC, "startingOffset": "earliest"}, r"the option 'startingoffset' is unknown: did you mean startingOffsets\?"),
    (BATCH, {**TOPIC, "kafka.auto.offset.reset": "earliest"}, r"kafka\.auto\.offset\.reset cannot be given: startingOffsets"),
    (BATCH, {**TOPIC, "kafka.key.deserializer": "x"}, r"kafka\.key\.deserializer cannot be given: .*cast the column"),
    (BATCH, {**TOPIC, "kafka.enable.auto.commit": "true"}, r"kafka\.enable\.auto\.commit cannot be given"),
    (BATCH, {**TOPIC, "kafka.security.protocol": "TLS"}, r"security\.protocol"),
    (BATCH, {**TOPIC, "kafka.fetch.max.byte": "5"}, r"unknown configuration key 'fetch\.max\.byte' \(did you mean fetch\.max\.bytes"),
    (BATCH, {**TOPIC, "kafka.fetch.max.wait.ms": "x"}, r"fetch\.max\.wait\.ms='x': expected a whole number"),
    (BATCH, {"kafka.bootstrap.servers": "nowhere", "subscribe": "a"}, r"bootstrap\.servers"),
    (BATCH, {**TOPIC, "startingOffsets": "[" * 200_000}, r"startingOffsets must be .*\.\.\. \(200000 characters\)$"),
    (BATCH, {**SERVERS, "assign": '{"a":' * 200_000}, r"assign must be JSON .*\.\.\. \(1000000 characters\)$"),
    (BATCH, {**TOPIC, "startingOffsets": '{"a": {"0": "' + "x" * 10_000_000 + '"}}'}, r"\(10000016 characters\)$"),
    (BATCH, {**TOPIC, "minPartitions": "9" * 100_000}, r"minPartitions must be .* \(100000 characters\)$"),
    (BATCH, {**SERVERS, "assign": '{"\\ud800": [0]}'}, r"assign has a topic that is not a text: '\\ud800'$"),
    (BATCH, {**TOPIC, "startingOffsets": '{"\\ud800": {"0": 1}}'}, r"startingOffsets has a topic that is not a text"),
    (BATCH, {**SERVERS, "subscribePattern": "(" * 5000 + "a" + ")" * 5000}, r"\(10001 characters\) is not a regular expression"),
    (BATCH, {**SERVERS, "subscribePattern": "a{99999999999999}"}, r"is not a regular expression: .* too large"),
    (STREAM, {**TOPIC, "maxTriggerDelay": "999999999999d"}, r"maxTriggerDelay must be a time like 30s"),
]  # fmt: skip


class TestRefused:
    @pytest.mark.parametrize(("query", "given", "sentence"), REFUSED)
    def test_one_sentence(self, query: Query, given: dict[str, str], sentence: str) -> None:
        """A missing, contradictory or unknown option is refused in one line that names it."""
        with pytest.raises(OptionError) as caught:
            SourceOptions.parse(given, query)
        text = str(caught.value)
        assert re.search(sentence, text), text
        assert "\n" not in text

    def test_a_batch_query_passes_over_limits_of_streams(self) -> None:
        """A batch query ignores limits of streams, as the JVM connector does, and lists them for a warning."""
        given = {**TOPIC, "maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1m"}
        assert SourceOptions.parse(given, Query.BATCH).ignored == ("maxOffsetsPerTrigger", "maxTriggerDelay")
        assert SourceOptions.parse(given, Query.STREAM).ignored == ()

    def test_an_option_of_somebody_else_passes(self) -> None:
        """Unknown options without the prefix `kafka.` are ignored, such as a path or the sink's topic."""
        assert SourceOptions.parse({**TOPIC, "topic": "out", "path": "/x"}).topics == ("flights",)
