"""Versions in which APIs changed have a name in `wire/schema/versions.tsv`, and code compares with this name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from odradek.wire.api import api_versions
from odradek.wire.api_keys import ApiKey
from odradek.wire.schema import table, versions
from odradek.wire.schema.anatomy_rows import ROWS, Row

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("wire", "metadata_quorum", "data_plane", "odradek", "spark")
NO_API_VERSIONS = {
    "metadata_quorum/replica/quorum_state.py": "the version of a file's format",
    "wire/metadata_frames.py": "the version of a record",
    "wire/principal.py": "the version of a principal in an Envelope",
    "odradek/security/handshakes.py": "the version of TLS records",
    "odradek/client/consumer/assignors.py": "the version of a consumer's subscription",
    "odradek/client/core/broker_connection.py": "every node answers ApiVersions in version 0",
}
"""Modules that may compare a version with a number, with the reason."""


@cache
def modules() -> dict[str, ast.Module]:
    """Parse the product's modules, except generated ones."""
    return dict(_parsed())


def _parsed() -> Iterator[tuple[str, ast.Module]]:
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith("wire/messages/") and name != "wire/schema/versions.py":
                yield name, ast.parse(path.read_text())


def api_of(name: str) -> ApiKey:
    """Return the API that a fact belongs to: the one with the longest name that is a prefix of the fact's name."""
    return max((key for key in ApiKey if name.startswith(f"{key.name}_")), key=lambda key: len(key.name))


def test_every_fact_lies_within_the_versions_of_its_api() -> None:
    """Each named version lies within its API's versions. Otherwise a comparison with it would always have the same
    result."""
    for fact in table.versions():
        first, last = api_versions(api_of(fact.name), unstable=True)
        assert first < fact.version <= last, fact


def test_a_fact_that_follows_a_field_is_about_an_api_with_this_field() -> None:
    """If a fact takes its version from a message's field, the message belongs to the API in the fact's name."""
    rows = (
        line.split("\t")
        for line in (ROOT / "wire/schema/versions.tsv").read_text().splitlines()
        if line[0] != "#"
    )
    followed = {name: text.split()[1].partition(".")[0] for name, text, _ in rows if not text.isdecimal()}
    assert len(followed) > 25
    for name, message in followed.items():
        api = "".join(word.capitalize() for word in api_of(name).name.split("_"))
        assert re.fullmatch(f"{api}(Request|Response)", message), name


def test_every_fact_is_used() -> None:
    """Each fact of the table is used in the code."""
    used = {
        node.id
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert sorted({fact.name for fact in table.versions()} - used) == []


def test_the_product_has_no_other_constants_of_this_kind() -> None:
    """The product has no other constants for versions, such as `TOPIC_IDS_SINCE`, which once had two different
    values."""
    found = [
        f"{name}: {target.id}"
        for name, module in modules().items()
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and re.search("_(SINCE|UNTIL)(_|$)|VERSION_(MAX|MIN)_WITH", target.id)
    ]
    assert found == []


def _is_version(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("version", "api_version")


def test_no_code_compares_a_version_with_a_number() -> None:
    """Code does not compare versions with numbers, because a fact's name says what changed."""
    found = {
        name
        for name, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Compare)
        and _is_version(node.left)
        and any(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.comparators)
    }
    assert found == set(NO_API_VERSIONS)


def test_rows_begin_at_facts() -> None:
    """Each row of `ROWS` begins at a named version of its API. Checks and refusals thus change in the same version as
    the handler."""
    numbers = {(api_of(fact.name), fact.version) for fact in table.versions()}
    for key, rows in ROWS.items():
        within = [row.within for row in rows if row.within is not None]
        each: list[Row] = [*rows, *within]
        for since in {row.since for row in each} | {row.ids_since or 0 for row in each}:
            assert not since or (key, since) in numbers, key


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("7", 7),
        ("since ProduceRequest.TopicData.TopicId", 13),
        ("after ProduceRequest.TopicData.Name", 13),
        ("after MetadataRequest.IncludeClusterAuthorizedOperations", 11),
        ("since OffsetFetchResponse.ErrorCode", 2),
    ],
)
def test_a_version_is_that_of_its_field(text: str, version: int) -> None:
    """`since` gives the first version with a field, and `after` the first version without it."""
    assert table.version_of(text, {message.name: message for message in table.messages()}) == version


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "from ProduceRequest.Acks",
        "since Produce.Acks",
        "since ProduceRequest",
        "since ProduceRequest.Nothing",
    ],
)
def test_a_version_that_no_field_has_is_refused(text: str) -> None:
    """A table entry with a wrong keyword, class or field is refused."""
    with pytest.raises(ValueError, match=r"is neither|has no field"):
        table.version_of(text, {message.name: message for message in table.messages()})


def test_a_field_that_stays_has_no_version_after_it() -> None:
    """`after` a field that is still in the newest version is refused."""
    with pytest.raises(ValueError, match="in every version from 13 on"):
        table.version_of(
            "after ProduceRequest.TopicData.TopicId", {message.name: message for message in table.messages()}
        )


def test_the_constants_are_plain_numbers() -> None:
    """The constants are plain integers, because the hot path compares with them for each request."""
    for fact in table.versions():
        assert type(getattr(versions, fact.name)) is int
        assert getattr(versions, fact.name) == fact.version
