"""STYLE.md, "Words": sentences of pages and docstrings are short, deny once at most, and begin with their noun or verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose


def reasons(text: str) -> list[str]:
    """The faults of the sentences of a page's paragraph."""
    return [fault.reason for fault in prose.faults_of_page("page", text)]


@pytest.fixture(scope="module")
def found() -> dict[str, list[prose.Fault]]:
    """The faults of the whole tree, read once."""
    return prose.all_faults()


def test_no_file_has_more_faults_than_it_had(found: dict[str, list[prose.Fault]]) -> None:
    """A new sentence keeps the rules; the list of exceptions only shrinks."""
    above = prose.raised(prose.read_exceptions(), {path: len(faults) for path, faults in found.items()})
    told = [str(fault) for path in above for fault in found[path]]
    assert not above, "\n".join([*told, f"above their counts: {above}"])


def test_what_was_mended_is_taken_off_the_list(found: dict[str, list[prose.Fault]]) -> None:
    """The list is lowered with each mended sentence: `python -m tests.prose --lower`."""
    counts = prose.read_exceptions()
    assert {path: len(found.get(path, ())) for path in counts} == counts


def test_a_sentence_has_at_most_25_words() -> None:
    """A link counts as its text, inline code as one word; a full stop within a number or a name ends no sentence."""
    assert reasons(" ".join(["word"] * 25) + ".") == []
    assert reasons(" ".join(["word"] * 26) + ".") == ["26 words"]
    assert reasons(" ".join(["word"] * 20) + ". " + " ".join(["word"] * 20) + ".") == []
    assert reasons("[" + "word " * 24 + "](https://a.example/b) `one two three`.") == []
    assert reasons("Version 4.3 of a.b.c, e.g. this one, " + "word " * 20) == ["27 words"]


def test_a_sentence_denies_at_most_once() -> None:
    """Neither and nor are one negation; Python's None is a value."""
    assert reasons("It never says nothing.") == ["2 negations"]
    assert reasons("It isn't there. It is not here.") == []
    assert reasons("It is neither here nor there.") == []
    assert reasons("None if there is no file.") == []
    assert reasons("`not` without a value.") == []


def test_banned_phrases_are_found() -> None:
    """Words that a stranger has to read twice are named in STYLE.md."""
    assert reasons("Whoever asks: see the module.") == ['"whoever"', '"see the module"']


def test_code_and_headings_are_left_out() -> None:
    """Fenced and indented code, headings: no prose. Cells and items are paragraphs of their own."""
    long = " ".join(["word"] * 30)
    assert reasons(f"# {long}\n\n```\n{long}\n```\n\n    {long}\n") == []
    half = " ".join(["word"] * 15)
    assert reasons(f"| {half} | {half} |\n\n* {half}\n* {half}\n") == []
    assert reasons(f"* {half}\n  {half}\n") == ["30 words"]
    assert reasons(f"* **{half}.** {half}.") == []


def test_docstrings_are_those_of_public_names() -> None:
    """Modules, classes, functions and attributes; what begins with an underscore is the author's own."""
    source = '''"""Of a module."""

SIZE = 1
"""Of a constant."""
_SIZE = 1
"""Of a private constant."""


class Thing:
    """Of a class."""

    def __init__(self):
        """Of an init."""
        self.count = 0
        """Of an attribute."""
        self._count = 0
        """Of a private attribute."""

    def act(self):
        """Of a method.

            Of a diagram that is set apart.
        """

    def _act(self):
        """Of a private method."""


class _Thing:
    """Of a private class."""

    def act(self):
        """Of its method."""
'''
    faults = prose.faults_of_module("module.py", source)
    told = [fault.sentence.split()[2].rstrip(".") for fault in faults]
    assert [fault.reason for fault in faults] == ['begins with "Of"'] * len(faults)
    assert told == ["module", "constant", "class", "init", "attribute", "method"]
    assert [fault.line for fault in faults][:2] == [1, 4]


def test_counts_are_never_raised(tmp_path: Path) -> None:
    """`--lower` refuses a file with more faults than before, and writes fewer."""
    page = tmp_path / "README.md"
    (tmp_path / prose.EXCEPTIONS).parent.mkdir()
    prose.write_exceptions({"README.md": 1}, tmp_path)
    page.write_text("It never says no. Not at all, never.")
    assert prose.main(["--lower"], tmp_path) == 1
    assert prose.read_exceptions(tmp_path) == {"README.md": 1}
    page.write_text("It says yes.")
    assert prose.main(["--lower"], tmp_path) == 0
    assert prose.read_exceptions(tmp_path) == {}


def test_a_moved_file_takes_its_count_along() -> None:
    """A new file may have as many faults as gone or divided files have less; all together never have more."""
    before = {"gone.py": 3, "kept.py": 2}
    assert prose.raised(before, {"rooms/new.py": 3, "kept.py": 2}) == {}
    assert prose.raised(before, {"gone.py": 1, "part.py": 2, "kept.py": 2}) == {}
    assert prose.raised(before, {"a.py": 2, "b.py": 2, "kept.py": 2}) == {"b.py": 1}
    assert prose.raised(before, {"kept.py": 3}) == {"kept.py": 1}
