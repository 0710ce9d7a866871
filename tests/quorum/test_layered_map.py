"""`LayeredMap` compared with a dict: no version ever changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.serving.layered_map import LayeredMap
from tests.schedule import examples

CHANGES = st.lists(
    st.dictionaries(st.integers(0, 40), st.one_of(st.none(), st.integers()), max_size=12), max_size=25
)


@given(st.dictionaries(st.integers(0, 40), st.integers(), max_size=30), CHANGES)
@settings(max_examples=examples(150), deadline=None)
def test_every_version_is_a_dict_that_never_changes(start: dict[int, int], changes: list[dict]) -> None:
    """Versions share layers, but a later change does not affect an earlier version."""
    model = dict(start)
    version: LayeredMap[int, int] = LayeredMap(start)
    versions = [(version, dict(model))]
    for change in changes:
        for key, value in change.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
        version = version.changed(change)
        versions.append((version, dict(model)))
    for found, expected in versions:
        assert len(found) == len(expected)
        assert dict(found) == expected
        assert found == LayeredMap(expected)
        assert all((key in found) == (key in expected) for key in range(41))
        assert all(found.get(key, "none") == expected.get(key, "none") for key in range(41))


def test_a_change_does_not_copy_the_map() -> None:
    """A small change copies only the overlay and not the large base."""
    big: LayeredMap[int, int] = LayeredMap({key: key for key in range(10_000)})
    changed = big.changed({5: -5})
    assert changed._base is big._base
    assert len(changed._overlay) == 1
    merges = 0
    for key in range(1000):
        after = changed.changed({key: -key})
        merges += after._base is not changed._base
        changed = after
    assert merges <= 10


def test_a_missing_key_is_a_key_error() -> None:
    """A key that was never there, or was removed, raises KeyError."""
    found = LayeredMap({"a": 1}).changed({"a": None})
    for key in ("a", "b"):
        try:
            found[key]
        except KeyError:
            continue
        raise AssertionError(f"the removed or missing key {key!r} was found")
