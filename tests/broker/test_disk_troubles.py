"""The list of directories in trouble, as a broker writes it into its configuration and others read it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.serving.disk_troubles import (
    Trouble,
    TroubledDirectory,
    parse_troubles,
    troubles_text,
)

TROUBLED = st.builds(
    TroubledDirectory,
    st.binary(min_size=16, max_size=16),
    st.sampled_from(Trouble),
    st.integers(0, 1 << 62),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(str.strip),
)


@given(st.lists(TROUBLED, max_size=4))
def test_what_is_written_is_read(troubled: list[TroubledDirectory]) -> None:
    """Any list of directories is read back as it was written, even if a path contains the separators."""
    assert parse_troubles(troubles_text(troubled)) == troubled


@given(st.text())
def test_what_makes_no_sense_is_passed_over(text: str) -> None:
    """Parts of a list that make no sense are skipped. Reading never fails, since a configuration may hold any text."""
    for each in parse_troubles(f"{text},{text}:{text}:{text}"):
        assert len(each.directory_id) == 16
