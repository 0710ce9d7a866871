"""STYLE.md, "Words": sentences are short and have at most one negation, and functions' docstrings begin with a verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import prose


def reasons(text: str) -> list[str]:
    """Return the faults of a page's paragraph."""
    return [fault.reason for fault in prose.faults_of_page("page", text)]


@pytest.fixture(scope="module")
def found() -> dict[str, list[prose.Fault]]:
    """Return the faults of the whole tree. Those of unchanged texts may come from an earlier run."""
    return prose.all_faults(kept=prose.ROOT / ".cache" / "prose.json")


def test_no_file_has_more_faults_than_it_had(found: dict[str, list[prose.Fault]]) -> None:
    """No file has more faults than the list of exceptions allows."""
    above = prose.raised(prose.read_exceptions(), prose.counts_of(found))
    shown = [str(fault) for kind, path in above for fault in found[path] if fault.kind == kind]
    assert not above, "\n".join([*shown, f"above their counts: {above}"])


def test_what_is_remembered_is_what_is_found(tmp_path: Path) -> None:
    """Stored faults are used only for unchanged texts and rules. A damaged file of them is ignored."""
    kept, page = tmp_path / "kept.json", tmp_path / "README.md"
    page.write_text("What is told here is plain.\n")
    found = prose.all_faults(tmp_path)
    assert [each.reason for each in found["README.md"]] == ['"what is told"']
    for _ in range(2):
        assert prose.all_faults(tmp_path, kept) == found
    text = kept.read_text()
    stored = json.loads(text)
    (digest,) = stored["faults"]
    stored["faults"][digest][0][2] = "It stands here."
    kept.write_text(json.dumps(stored))
    (remembered,) = prose.all_faults(tmp_path, kept)["README.md"]
    assert remembered.reason == "It stands here.", "the second look reads what the first one has kept"
    for damage in ("", "{", "[]", json.dumps(stored | {"rules": "others"})):
        kept.write_text(damage)
        assert prose.all_faults(tmp_path, kept) == found
        assert kept.read_text() == text
    page.write_text("All of it is plain.\n")
    assert prose.all_faults(tmp_path, kept) == {}


def test_no_sentence_is_excepted() -> None:
    """The list has no exceptions of the kind `sentence`: length, negations, and words that are banned everywhere."""
    assert {kind for kind, _ in prose.read_exceptions()} <= {"phrase", "verb"}


def test_what_was_mended_is_taken_off_the_list(found: dict[str, list[prose.Fault]]) -> None:
    """If sentences were mended, the list is lowered with `python -m tests.prose --lower`."""
    counts = prose.read_exceptions()
    now = prose.counts_of(found)
    assert {key: now.get(key, 0) for key in counts} == counts


def test_a_sentence_has_at_most_25_words() -> None:
    """A sentence has at most 25 words. A link counts as its text, code as one word, and a dot in a name ends
    nothing."""
    assert reasons(" ".join(["word"] * 25) + ".") == []
    assert reasons(" ".join(["word"] * 26) + ".") == ["26 words"]
    assert reasons(" ".join(["word"] * 20) + ". " + " ".join(["word"] * 20) + ".") == []
    assert reasons("[" + "word " * 24 + "](https://a.example/b) `one two three`.") == []
    assert reasons("Version 4.3 of a.b.c, e.g. this one, " + "word " * 20) == ["27 words"]


def test_a_sentence_denies_at_most_once() -> None:
    """A sentence has at most one negation. "Neither ... nor" counts once. Python's None is left out."""
    assert reasons("It never says nothing.") == ["2 negations"]
    assert reasons("It isn't there. It is not here.") == []
    assert reasons("It is neither here nor there.") == []
    assert reasons("None if there is no file.") == []
    assert reasons("`not` without a value.") == []


def test_banned_phrases_are_found() -> None:
    """The phrases that STYLE.md bans are found."""
    assert reasons("Whoever asks: see the module.") == ['"whoever"', '"see the module"']


def test_code_and_headings_are_left_out() -> None:
    """Code and headings are left out. Cells of tables and items of lists count as paragraphs."""
    long = " ".join(["word"] * 30)
    assert reasons(f"# {long}\n\n```\n{long}\n```\n\n    {long}\n") == []
    half = " ".join(["word"] * 15)
    assert reasons(f"| {half} | {half} |\n\n* {half}\n* {half}\n") == []
    assert reasons(f"* {half}\n  {half}\n") == ["30 words"]
    assert reasons(f"* **{half}.** {half}.") == []


def test_docstrings_are_those_of_public_names() -> None:
    """Docstrings of modules and of public classes, functions and attributes are checked. Private names are left out."""
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
    faults = [fault for fault in prose.faults_of_module("module.py", source) if fault.kind == "sentence"]
    told = [fault.sentence.split()[2].rstrip(".") for fault in faults]
    assert [fault.reason for fault in faults] == ['begins with "Of"'] * len(faults)
    assert told == ["module", "constant", "class", "init", "attribute", "method"]
    assert [fault.line for fault in faults][:2] == [1, 4]


def test_counts_are_never_raised(tmp_path: Path) -> None:
    """`--lower` refuses a file with more faults than before, and otherwise writes the lower counts."""
    page = tmp_path / "README.md"
    (tmp_path / prose.EXCEPTIONS).parent.mkdir()
    prose.write_exceptions({("sentence", "README.md"): 1}, tmp_path)
    page.write_text("It never says no. Not at all, never.")
    assert prose.main(["--lower"], tmp_path) == 1
    assert prose.read_exceptions(tmp_path) == {("sentence", "README.md"): 1}
    page.write_text("It says yes.")
    assert prose.main(["--lower"], tmp_path) == 0
    assert prose.read_exceptions(tmp_path) == {}


def test_a_moved_file_takes_its_count_along() -> None:
    """A new file may have as many faults as removed or divided files have lost. The total never rises."""
    before = phrases({"gone.py": 3, "kept.py": 2})
    assert prose.raised(before, phrases({"rooms/new.py": 3, "kept.py": 2})) == {}
    assert prose.raised(before, phrases({"gone.py": 1, "part.py": 2, "kept.py": 2})) == {}
    assert prose.raised(before, phrases({"a.py": 2, "b.py": 2, "kept.py": 2})) == phrases({"b.py": 1})
    assert prose.raised(before, phrases({"kept.py": 3})) == phrases({"kept.py": 1})


def test_a_kind_does_not_pay_for_another() -> None:
    """Fewer faults of one kind do not allow more of another kind, in the same file or in a new one."""
    before = {("verb", "old.py"): 3}
    for path in ("old.py", "new.py"):
        assert prose.raised(before, {("phrase", path): 1}) == {("phrase", path): 1}


def phrases(counts: dict[str, int]) -> dict[tuple[str, str], int]:
    """Make counts of the kind `phrase`."""
    return {("phrase", path): count for path, count in counts.items()}


@pytest.mark.parametrize(
    ("docstring", "passes"),
    [
        ("Return the offset.", True),
        ("True if the log is open.", True),
        ("Called when the device answers again.", True),
        ("The offset.", False),
        ("A device that hung is back.", False),
        ("Returns the offset.", False),
        ("Answer a request.", True),
        ("Answer of the leader.", False),
        ("Record that is sent.", False),
        ("`offset` is where to begin.", False),
    ],
)
def test_a_function_begins_with_a_verb(docstring: str, passes: bool) -> None:
    """A function's docstring that states a fact, or begins with a noun that looks like a verb, is found."""
    faults = prose.faults_of_habits("m.py", f'def _f():\n    """{docstring}"""\n')
    assert [fault.kind for fault in faults] == ([] if passes else ["verb"])


def test_nouns_are_for_properties_and_tests() -> None:
    """Docstrings of properties, fixtures, tests and `__init__` may begin with a noun."""
    source = """
class Log:
    def __init__(self): "`size` in bytes."
    @property
    def size(self): "The size."
@pytest.fixture
def log(): "A log."
def test_it(): "The rule."
"""
    assert prose.faults_of_habits("m.py", source) == []


def test_vague_phrases_are_found_in_docstrings_and_comments() -> None:
    """Vague phrases are found in docstrings and comments, private ones included, even across lines. Code is
    left out."""
    source = '''
def _f():
    """Send the one
    that waits."""
    # It was
    # told. `tell` tells
    x = "tell"  # at the end of a line of code
    # They cannot be told apart.
'''
    faults = [fault for fault in prose.faults_of_habits("m.py", source) if fault.kind == "phrase"]
    assert [(fault.line, fault.reason) for fault in faults] == [
        (3, '"one that"'),
        (5, '"told"'),
        (5, '"tells"'),
    ]
