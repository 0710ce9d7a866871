"""docs/api.md, docs/api-admin.md and docs/api-keys.md are up to date and complete."""

from __future__ import annotations

import inspect
import re

import attrs
import pytest

import odradek
from odradek import trio
from odradek.client import admin, errors
from odradek.client.core import client_keys
from odradek.client.shells.record_future import RecordFuture
from tests.docs.api_reference import ADMINISTRATION, CLIENTS, KEYS, calls_of, pages, signature
from tests.docs.markdown import ROOT

FACE = (
    odradek.Producer,
    odradek.Consumer,
    odradek.Admin,
    odradek.Client,
    RecordFuture,
    trio.Producer,
    trio.Consumer,
    trio.Admin,
    trio.SentRecord,
)
NO_VERBS = {"A", "An", "The", "These", "Those", "This", "All", "One", "What", "First", "Of", "How", "Whether"}


@pytest.mark.parametrize("name", [CLIENTS, ADMINISTRATION, KEYS])
def test_the_page_is_up_to_date(name: str) -> None:
    """The pages equal the output of `python -m tests.docs.api_reference`."""
    assert (ROOT / name).read_text() == pages()[name]


def test_everything_public_is_on_a_page() -> None:
    """Each name in `__all__` of `odradek`, `odradek.trio`, `odradek.client.admin` and `odradek.client.errors` is on a
    page."""
    text = "".join(pages().values())
    classes = {
        name
        for module in (odradek, admin, errors)
        for name in module.__all__
        if inspect.isclass(getattr(module, name))
    }
    assert len(classes) > 60
    shown = set(re.findall(r"`(?:odradek\.)?(\w+)`|# (\w+)\n", text))
    assert sorted(classes - {name for pair in shown for name in pair}) == []
    openers = [name for name in trio.__all__ if name.startswith("open_")]
    assert [name for name in openers if f"**`odradek.trio.{name}`**" not in text] == []


def test_every_key_is_on_a_page() -> None:
    """Each configuration key with an effect has a row with a sentence. The other keys are named."""
    text = pages()[KEYS]
    settings = (client_keys.ProducerSettings, client_keys.ConsumerSettings, client_keys.AdminSettings)
    keys = {each.name.replace("_", ".") for cls in settings for each in attrs.fields(cls)}
    rows = dict(re.findall(r"^\| `([\w.]+)` \| [^|]* \| (.+) \|$", text, re.MULTILINE))
    assert set(rows) == keys
    assert min(map(len, rows.values())) > 15
    named = set(re.findall(r"`([\w.]+)`", text))
    assert client_keys.WITHOUT_EFFECT | set(client_keys.NEUTRAL_ONLY) <= named


@pytest.mark.parametrize("cls", FACE, ids=lambda cls: cls.__name__)
def test_a_call_says_what_it_does(cls: type) -> None:
    """The docstring of a call begins with an imperative verb. That of a property may begin with a noun."""
    found = 0
    for _, name, member in calls_of(cls):
        if inspect.isfunction(member):
            found += 1
            first = (inspect.getdoc(member) or "").split(" ")[0].rstrip(":,")
            said = f"{cls.__name__}.{name}: {first}"
            is_answer = (inspect.getdoc(member) or "").startswith("True ")
            assert re.fullmatch(r"[A-Z][a-z]+", first), said
            assert is_answer or (first not in NO_VERBS and not first.endswith(("ed", "ss", "ons"))), said
            assert is_answer or not re.fullmatch(r"\w+[^s]s", first), said
    assert found > 1


def test_a_signature_is_as_users_write_it() -> None:
    """A signature leaves out `self` and `core`, shows the result of the call, and says `await` if it must be
    awaited."""
    assert signature("lag", odradek.Consumer.lag) == "lag(partition: tuple[str, int]) -> int | None"
    listed = signature("list_groups", odradek.Admin.list_groups)
    assert listed.startswith("list_groups(\n    *,\n    states: Sequence[str] = (),")
    assert listed.endswith(") -> list[GroupListing]")
    assert signature("flush", trio.Producer.flush) == "await flush() -> None"
