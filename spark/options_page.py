"""The generator of the page docs/spark-options.md, from the tables in the code: `python -m
odradek.spark.options_page`. SHELL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import attrs

from odradek.client.core.client_keys import AdminSettings, ConsumerSettings, ProducerSettings
from odradek.spark.option_table import SINK_OPTIONS, SOURCE_OPTIONS, Option
from odradek.spark.source_options import READING_KEYS, REFUSED_KEYS, SOURCE_DEFAULTS
from odradek.spark.writing.sink_plan import SINK_DEFAULTS

__all__ = ["main", "page"]

_PAGE = Path("docs", "spark-options.md")
_OURS = "(ours) "
_NOT_FOR_SPARK = {
    "key.serializer",
    "odradek.on.error",
    "odradek.sasl.oauthbearer.token.callback",
    "partitioner.class",
    "transaction.two.phase.commit.enable",
    "transactional.id",
    "value.serializer",
}
"""Client keys that cannot be options. Some have functions or classes of a program as values; others are settings that
the sink chooses itself.
"""
_QUERIES = {"both": "", "batch": "batch", "stream": "stream"}


def page() -> str:
    """Make the Markdown text of the page docs/spark-options.md."""
    shared = (_keys(AdminSettings) & _keys(ConsumerSettings) & _keys(ProducerSettings)) - _NOT_FOR_SPARK
    writing = _keys(ProducerSettings) - _keys(AdminSettings) - _NOT_FOR_SPARK
    return "\n".join(
        [
            "# Spark: all options",
            "",
            "The code wrote this page: `python -m odradek.spark.options_page` writes it again. [spark.md](spark.md) shows how they are",
            "used. Spark's own Kafka connector has the same options, except those marked as ours. Names may be written in any case.",
            "",
            "## Reading",
            "",
            *_options(SOURCE_OPTIONS),
            "",
            "One of `assign`, `subscribe` and `subscribePattern` must be given, and `kafka.bootstrap.servers`. A timestamp takes",
            "precedence over offsets by timestamp, and these over offsets.",
            "",
            "## Writing",
            "",
            *_options(SINK_OPTIONS),
            "",
            "## Kafka's keys",
            "",
            "As an option, each key begins with `kafka.`. [client.md](client.md) says what the keys do. An unknown key is an error,",
            "even if Kafka's Java client knows it. A reader ignores the keys of writers, and a writer those of readers.",
            "",
            "### Reading and writing",
            "",
            *_settings(shared, ConsumerSettings, {}),
            "",
            "### Reading alone",
            "",
            *_settings(READING_KEYS, ConsumerSettings, SOURCE_DEFAULTS),
            "",
            "### Writing alone",
            "",
            *_settings(writing, ProducerSettings, SINK_DEFAULTS),
            "",
            "### Refused",
            "",
            "| key | instead |",
            "| --- | --- |",
            *(f"| `kafka.{key}` | {reason} |" for key, reason in sorted(REFUSED_KEYS.items())),
            "",
        ]
    )


def _options(table: Iterable[Option]) -> list[str]:
    rows = [
        f"| `{each.name}` | {each.default} | {_QUERIES[each.queries]} | {_OURS * each.is_ours}{each.about} |"
        for each in table
    ]
    return ["| option | default | only | |", "| --- | --- | --- | --- |", *rows]


def _keys(settings: type) -> set[str]:
    return {each.name.replace("_", ".") for each in attrs.fields(settings)}


def _settings(keys: Iterable[str], settings: type, own: dict[str, str]) -> list[str]:
    defaults = {each.name.replace("_", "."): each.default for each in attrs.fields(settings)}
    rows = [f"| `kafka.{key}` | {own.get(key) or _text(defaults[key])} |" for key in sorted(keys)]
    return ["| key | default |", "| --- | --- |", *rows]


def _text(default: object) -> str:
    if default is None or default is attrs.NOTHING or default == "" or default == ():
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def main() -> int:
    """Write the page into the current directory, which must be a checkout."""
    _PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
