"""The tables of docs/coming-from.md, made from the client's table of familiar names.

`python -m tests.client.shells.familiar_page` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from odradek.client.core.familiar_names import (
    AIOKAFKA,
    CONFLUENT,
    FAMILIAR_ARGUMENTS,
    FAMILIAR_KEYS,
    FAMILIAR_METHODS,
    KAFKA_PYTHON,
    FamiliarKey,
    Treatment,
)

__all__ = ["PAGE", "page_with_tables", "tables"]

PAGE = Path(__file__).parents[3] / "docs" / "coming-from.md"
_SHORT = {KAFKA_PYTHON: "kafka-python", AIOKAFKA: "aiokafka", CONFLUENT: "confluent-kafka"}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _spelled(key: FamiliarKey) -> str:
    """Format a key. Keys of confluent-kafka have dots, and those of the other clients have underscores."""
    return f"`{key.name if key.clients == (CONFLUENT,) else key.name.replace('.', '_')}`"


def _of(clients: tuple[str, ...]) -> str:
    return ", ".join(_SHORT[each] for each in clients)


def tables() -> dict[str, str]:
    """Return the tables by their headings."""
    by_treatment: dict[Treatment, list[FamiliarKey]] = {each: [] for each in Treatment}
    for key in FAMILIAR_KEYS:
        by_treatment[key.treatment].append(key)
    head = ("key there", "of", "here")
    return {
        "Keys that are taken": _table(
            head,
            (
                (
                    _spelled(key),
                    _of(key.clients),
                    ", with ".join([f"`{key.ours}`", *(f"`{name}={text}`" for name, text in key.also)]),
                )
                for key in by_treatment[Treatment.ACCEPTED]
            ),
        ),
        "Keys that are ignored": _table(
            ("key there", "of", "because"),
            ((_spelled(key), _of(key.clients), key.ours) for key in by_treatment[Treatment.IGNORED]),
        ),
        "Keys that are an error": _table(
            head, ((_spelled(key), _of(key.clients), key.ours) for key in by_treatment[Treatment.REFUSED])
        ),
        "Methods": _table(
            ("method there", "of", "here"),
            ((f"`{each.of}.{each.name}`", _of(each.clients), each.ours) for each in FAMILIAR_METHODS),
        ),
        "Arguments": _table(
            ("argument there", "of", "here"),
            ((f"`{each.of}({each.name}=)`", _of(each.clients), each.ours) for each in FAMILIAR_ARGUMENTS),
        ),
    }


def page_with_tables(page: str) -> str:
    """Return the page with new tables. Raises `ValueError` if a heading is missing."""
    for heading, table in tables().items():
        begin = page.index(f"## {heading}\n")
        first = page.index("\n| ", begin) + 1
        end = first
        while page[end : end + 1] == "|":
            end = page.index("\n", end) + 1
        page = page[:first] + table + page[end:]
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
