"""Reads the fact tables: `messages.tsv`, `versions.tsv`, `apis.tsv`, `errors.tsv`. Only the generator and tests need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from odradek.wire.structure import VERSION_END, version_range

DIRECTORY = Path(__file__).parent


@attrs.frozen
class FieldFact:
    """One field of a structure. `fields` has the inner fields of a field whose type is a structure; otherwise
    it is empty.
    """

    name: str
    type: str
    is_array: bool
    versions: str
    nullable: str
    tagged: str
    tag: int
    default: str
    flexible: bool
    fields: tuple[FieldFact, ...]

    @property
    def is_structure(self) -> bool:
        return self.type[0].isupper()


@attrs.frozen
class MessageFact:
    """One request, response, header or record with its fields."""

    name: str
    kind: str
    """The kind of message: `request`, `response`, `header`, `data`, `metadata`, `coordinator-key` or
    `coordinator-value`.
    """
    api_key: int | None
    valid_versions: tuple[int, int]
    flexible_since: int | None
    latest_version_unstable: bool
    fields: tuple[FieldFact, ...]


@attrs.frozen
class ApiFact:
    """One API as a Kafka 4.3 node offers it."""

    key: int
    name: str
    versions: tuple[int, int]
    latest_version_unstable: bool
    flexible_since: int | None
    listeners: tuple[str, ...]
    cluster_action: bool
    forwarded_to_controller: bool


@attrs.frozen
class ErrorFact:
    """One error code. `retriable` is true if Kafka's exception for it extends RetriableException."""

    code: int
    name: str
    retriable: bool
    text: str


@attrs.frozen
class VersionFact:
    """A constant for the first version of an API that has some property. `reason` states this property."""

    name: str
    version: int
    reason: str


def _rows(name: str) -> Iterator[list[str]]:
    for line in (DIRECTORY / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield line.split("\t")


def _flexible_since(text: str) -> int | None:
    first, last = version_range(text)
    if last < first:
        return None
    if last != VERSION_END:
        raise ValueError(f"flexible versions must be open-ended, not {text}")
    return first


def _nest(rows: list[list[str]], prefix: str) -> tuple[FieldFact, ...]:
    """Build the fields directly under `prefix`, each with its inner fields. `prefix` is empty, or a path that
    ends in a dot.
    """
    fields = []
    for row in rows:
        path = row[0]
        if not path.startswith(prefix) or "." in path[len(prefix) :]:
            continue
        _, type_, versions, nullable, tagged, tag, default, flexible = row + [""] * (8 - len(row))
        fields.append(
            FieldFact(
                name=path[len(prefix) :],
                type=type_.removeprefix("[]"),
                is_array=type_.startswith("[]"),
                versions=versions,
                nullable=nullable,
                tagged=tagged,
                tag=int(tag) if tag else -1,
                default=default,
                flexible=flexible != "none",
                fields=_nest(rows, path + "."),
            )
        )
    return tuple(fields)


def messages() -> list[MessageFact]:
    """Read all messages, in the order of the table."""
    heads: list[tuple[list[str], list[list[str]]]] = []
    for mark, *row in _rows("messages.tsv"):
        if mark == "M":
            heads.append((row, []))
        else:
            heads[-1][1].append(row)
    return [
        MessageFact(
            name=name,
            kind=kind,
            api_key=int(api_key) if api_key else None,
            valid_versions=version_range(valid),
            flexible_since=_flexible_since(flexible),
            latest_version_unstable=unstable == "yes",
            fields=_nest(fields, ""),
        )
        for (name, kind, api_key, valid, flexible, unstable), fields in heads
    ]


def apis() -> list[ApiFact]:
    """Read all APIs, ordered by key."""
    return [
        ApiFact(
            key=int(key),
            name=name,
            versions=version_range(versions),
            latest_version_unstable=unstable == "yes",
            flexible_since=_flexible_since(flexible),
            listeners=tuple(listeners.split(",")),
            cluster_action=cluster_action == "yes",
            forwarded_to_controller=forwarded == "yes",
        )
        for key, name, versions, unstable, flexible, listeners, cluster_action, forwarded in _rows("apis.tsv")
    ]


def errors() -> list[ErrorFact]:
    """Read all error codes, ordered by code."""
    return [
        ErrorFact(code=int(code), name=name, retriable=retriable == "yes", text=text)
        for code, name, retriable, text in _rows("errors.tsv")
    ]


def versions() -> list[VersionFact]:
    """Read the versions in which APIs changed, in the order of the table. If an entry names a field instead
    of a version, its version is computed from the field's versions.
    """
    by_name = {message.name: message for message in messages()}
    return [
        VersionFact(name, version_of(version, by_name), reason)
        for name, version, reason in _rows("versions.tsv")
    ]


def version_of(text: str, by_name: Mapping[str, MessageFact]) -> int:
    """Return the version that a text names. `since FIELD` is the first version with the field, and `after
    FIELD` the first version without it. A number is the version itself. Raises `ValueError` for any other
    text.
    """
    if text.isdecimal():
        return int(text)
    word, _, path = text.partition(" ")
    message, *parts = path.split(".")
    if word not in ("since", "after") or message not in by_name or not parts:
        raise ValueError(f"{text!r} is neither a number nor `since` or `after` a field")
    fields, span = by_name[message].fields, ""
    for part in parts:
        found = next((field for field in fields if field.name == part), None)
        if found is None:
            raise ValueError(f"{message} has no field {path.partition('.')[2]}")
        fields, span = found.fields, found.versions
    first, last = version_range(span)
    if word == "after" and last == VERSION_END:
        raise ValueError(f"{path} is in every version from {first} on")
    return first if word == "since" else last + 1
