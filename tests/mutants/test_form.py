"""How a mutant is written: changes fit exactly once, stale seals show the difference, and replaced code runs
everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from tests.mutants.form.change import Misfit, changed
from tests.mutants.form.normal import normalize
from tests.mutants.form.seals import Seal, Stale, read, write
from tests.mutants.patching import changed_source, compiled, patched, replaced

SOURCE = '''
    def count(self, most: int) -> int:
        """Count."""
        found = 0
        for each in self.all(
            most,  # a bound
        ):
            if each is not None:
                found += 1
                self.log(each)
        if most and not found:
            reached("count.of_nothing")
        self.log(None)
        reached("count.ended")
        return found
'''
NORMAL = """def count(self, most: int) -> int:
    found = 0
    for each in self.all(most):
        if each is not None:
            found += 1
            self.log(each)
    self.log(None)
    return found"""
HERE = "tests.mutants.test_form:"


class Base:
    """A class whose child calls its method by `super()`."""

    def name(self) -> str:
        """Return a name."""
        return "base"


@attrs.define(eq=False)
class Child(Base):
    """A slotted child class. attrs makes it twice, so its `super()` uses a cell."""

    number: int = 1

    def name(self) -> str:
        """Return a name."""
        return super().name() + " of child"

    @property
    def doubled(self) -> int:
        """Return twice the number."""
        return 2 * self.number

    @staticmethod
    def plain() -> str:
        """Return a constant."""
        return "sound"


def test_the_normal_form_has_neither_docstring_nor_comments_nor_named_states() -> None:
    """Two functions that differ only in comments, docstring, layout and named states have the same normal form."""
    assert normalize(SOURCE) == NORMAL
    assert normalize(NORMAL) == NORMAL


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("- found = 0\n+ found = 1", "    found = 1\n"),
        ("- each is not None\n+ each", "        if each:\n"),
        ("- found += 1\n  self.log(each)", "        if each is not None:\n            self.log(each)\n"),
        (
            "- self.log(None)\n  return found\n...\n  found = 0\n+ self.log(None)",
            "    found = 0\n    self.log(None)\n",
        ),
        (
            "  found = 0\n- for each in self.all(most):\n+ for each in self.all(most - 1):",
            "self.all(most - 1):",
        ),
    ],
)
def test_a_change_goes_to_its_only_place(change: str, line: str) -> None:
    """A change may replace whole lines or a part of one, remove lines, and have two places."""
    assert line in changed(NORMAL, change)


@pytest.mark.parametrize(
    "change",
    [
        "- found\n+ lost",
        "- nowhere\n+ here",
        "  found = 0",
        "- found = 0\n+ found = 0",
        "found = 0",
        "-found = 0",
    ],
)
def test_a_change_without_its_only_place_is_refused(change: str) -> None:
    """A change is refused unless it fits exactly once and makes a difference."""
    with pytest.raises(Misfit):
        changed(NORMAL, change)


def test_replaced_code_runs_wherever_the_function_is_known() -> None:
    """Bound methods, methods with `super()`, properties and static methods run the bug in the block, and not
    after it."""
    child = Child()
    bound = child.name
    with (
        replaced(HERE + "Child.name", "def name(self): return super().name() + '!'"),
        patched(HERE + "Child.doubled", "2 * ", "3 * "),
        patched(HERE + "Child.plain", '"sound"', '"bug"'),
    ):
        assert (bound(), child.doubled, Child.plain()) == ("base!", 3, "bug")
    assert (bound(), child.doubled, Child.plain()) == ("base of child", 2, "sound")


def test_what_does_not_fit_its_function_is_refused() -> None:
    """A text that does not occur, or a body that needs other outer variables, is refused."""
    with pytest.raises(ValueError, match="0 times"):
        changed_source(HERE + "Child.plain", "no such text", "")
    with pytest.raises(ValueError, match="outer variables"):
        compiled(Child.name, "def name(self): return ''")


def test_a_stale_seal_shows_the_difference() -> None:
    """A seal holds until its function's syntax tree changes. Then the error shows the lines that differ."""
    function = HERE + "Base.name"
    Seal(function, "def name(self) -> str:\n    return 'base'", ("m",)).check()
    with pytest.raises(
        Stale,
        match=re.compile(
            r"m: .* has changed.*^-    return 'bass'$.*^\+    return 'base'$", re.DOTALL | re.MULTILINE
        ),
    ):
        Seal(function, "def name(self) -> str:\n    return 'bass'", ("m",)).check()
    with pytest.raises(Stale, match=r"is gone(.|\n)*It was(.|\n)*return 'base'"):
        Seal(HERE + "Base.title", "def title(self) -> str:\n    return 'base'", ("m",)).check()


def test_seals_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Seals are read as they were written, with one text for two mutants of a function. An edited text is refused."""
    texts = {
        ("raft", "a:f", "m"): NORMAL,
        ("raft", "a:f", "n"): NORMAL,
        ("log", "b:g", "m"): "def g():\n    pass",
    }
    write(texts, tmp_path)
    seals = read(tmp_path)
    assert {key: seal.text for key, seal in seals.items()} == {
        (name, function): text for (_, function, name), text in texts.items()
    }
    assert seals["m", "a:f"] is seals["n", "a:f"]
    path = tmp_path / "log.txt"
    path.write_text(path.read_text().replace("pass", "return"))
    with pytest.raises(Stale, match="edited by hand"):
        read(tmp_path)
