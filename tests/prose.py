"""Counts sentences of pages and docstrings that are too long, have two negations, or use words that STYLE.md bans.

    python -m tests.prose [PATH ...]      # each fault with its place, the files with the most of them last
    python -m tests.prose --lower         # write the counts as they are now; refuses to raise any

It reads the pages of the root, of docs/ and the README of each package. In Python files it reads the docstrings of
modules, and of classes, functions and attributes with a public name. Generated messages are left out. So are code,
diagrams and headings.

Faults are of three kinds:

* `sentence`: too long, has two negations, or has a word that is banned everywhere;
* `phrase`: a phrase of a docstring or a comment whose reader has to look for the noun or the verb. "Tell" may mean report,
  return, send, notify, log, answer or raise. Private names count here, too;
* `verb`: the docstring of a function that does not begin with a verb in the imperative. The verbs are in
  `prose_verbs.txt`. Properties, fixtures, tests and `__init__` may begin with a noun. "True if" and "Called" (of a
  callback) pass as well.

`prose_exceptions.tsv` has a count for each kind and file that is not clean yet. `test_prose.py` compares each file with
its counts. More is a new fault, and fewer asks for `--lower`. A file that is moved or divided keeps its counts: new
files may have as many faults as old ones have lost. The total never rises.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = "tests/prose_exceptions.tsv"
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "STYLE.md",
)
FOLDERS = (
    "bench",
    "data_plane",
    "deploy",
    "docs",
    "examples",
    "jepsen_tests",
    "metadata_quorum",
    "odradek",
    "pyspark_odradek",
    "sim",
    "spark",
    "testkit",
    "tests",
    "wire",
)
GENERATED = "wire/messages/"
WORDS_MAX = 25
NEGATIONS_MAX = 1
_DENIALS = "cannot|neither|never|no|nobody|nor|not|nothing|nowhere|without"
NEGATION = re.compile(rf"(?<![\w-])(?:{_DENIALS}|{_DENIALS.title()}|none)(?![\w-])|n['’]t\b")
"""Finds negations. With a capital letter, `None` is Python's value and does not count."""
BANNED = re.compile(r"\bwhoever\b|\bwhat is told\b|\bsee the module\b", re.IGNORECASE)
VAGUE = re.compile(
    r"\b(?:tell|tells|telling|told)\b(?! (?:\w+ ){0,3}apart\b)|\bone that\b|\bthose who\b|\bwhat is\b",
    re.IGNORECASE,
)
"""Finds phrases that leave out the noun or the verb. "Tell apart" is allowed."""
VERBS = frozenset((ROOT / "tests/prose_verbs.txt").read_text().split())
KINDS = ("sentence", "phrase", "verb")

_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_CODE_LIST = re.compile(r"CODE(?:, CODE)+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_WORD = re.compile(r"[A-Za-z0-9](?:[\w'’./:+%-]*\w)?")
_END = re.compile(r"(?<=[.!?])[\"'’)\]*_]*\s+")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|et al)|\b[A-Z])\.$")
_ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s+")
_NO_VERB = re.compile(r"\w+ (?:that )?(?:of|whose|is|are|was|were|has|have|had|may|must|can)\b")
"""Finds nouns that look like verbs at the beginning: "Answer of the leader", "Record that is sent"."""
_UNDERLINE = re.compile(r"\s*[=-]{3,}\s*$")


class Fault(NamedTuple):
    """A sentence that breaks a rule, and the line where its paragraph begins."""

    path: str
    line: int
    reason: str
    sentence: str
    kind: str = "sentence"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}: {self.sentence}"


class Paragraph(NamedTuple):
    """A text that is read as one: a paragraph, an item of a list, or a cell of a table."""

    line: int
    text: str


# -- files and their texts --------------------------------------------------------------------------------------------------


def pages(root: Path = ROOT) -> list[Path]:
    """Return the Markdown pages that must keep the rules."""
    found = [root / name for name in PAGES]
    for folder in FOLDERS:
        pattern = "**/*.md" if folder == "docs" else "**/README.md"
        found += sorted((root / folder).glob(pattern))
    return [page for page in found if page.exists()]


def modules(root: Path = ROOT) -> list[Path]:
    """Return the Python files that must keep the rules."""
    found = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    return [path for path in found if not path.relative_to(root).as_posix().startswith(GENERATED)]


def paragraphs_of_page(text: str) -> Iterator[Paragraph]:
    """Yield paragraphs, items and cells of a Markdown page."""
    lines: list[tuple[int, str]] = []
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            yield from _joined(lines)
        elif is_code:
            continue
        elif line.lstrip().startswith("|"):
            yield from _joined(lines)
            yield from _cells(number, line)
        elif not line.strip() or line.startswith("#") or (not lines and line.startswith("    ")):
            yield from _joined(lines)
        else:
            if _ITEM.match(line):
                yield from _joined(lines)
            lines.append((number, line))
    yield from _joined(lines)


def paragraphs_of_docstring(text: str, first_line: int) -> Iterator[Paragraph]:
    """Yield paragraphs and items of a docstring. Text indented by four spaces is code, a diagram or a list of
    errors."""
    lines: list[tuple[int, str]] = []
    rows = text.expandtabs().splitlines() or [""]
    margin = min((len(row) - len(row.lstrip()) for row in rows[1:] if row.strip()), default=0)
    is_code = False
    for number, row in enumerate(rows):
        line = row.strip() if number == 0 else row[margin:].rstrip()
        if line.startswith("```"):
            is_code = not is_code
        is_apart = line.startswith("    ") and not (lines and _ITEM.match(lines[0][1]))
        if is_code or is_apart or not line or line.startswith("```"):
            yield from _joined(lines)
        elif _UNDERLINE.match(line):
            lines.clear()
        elif line.startswith("|"):
            yield from _joined(lines)
            yield from _cells(first_line + number, line)
        else:
            if _ITEM.match(line):
                yield from _joined(lines)
            lines.append((first_line + number, line))
    yield from _joined(lines)


def _cells(number: int, row: str) -> Iterator[Paragraph]:
    """Yield the cells of a table's row. A semicolon separates fragments in a cell."""
    return (Paragraph(number, cell) for cell in re.split(r"(?<!\\)\||;", row) if cell.strip())


def _joined(lines: list[tuple[int, str]]) -> Iterator[Paragraph]:
    """Yield the lines collected so far as one paragraph, and empty the list."""
    if lines:
        number, first = lines[0]
        texts = [_ITEM.sub("", first, count=1), *(text for _, text in lines[1:])]
        yield Paragraph(number, " ".join(text.strip() for text in texts))
        lines.clear()


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of a module and of its public classes, functions and attributes."""
    yield from _docstrings(ast.parse(source).body, is_named=True)


def _docstrings(body: Sequence[ast.stmt], *, is_named: bool) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings. With `is_named`, a leading string belongs to something with a public name."""
    for statement in body:
        if isinstance(statement, ast.Expr):
            value = statement.value
            if is_named and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value
            is_named = False
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = statement.name
            if isinstance(statement, ast.ClassDef) or name == "__init__":
                if not _is_private(name):
                    yield from _docstrings(statement.body, is_named=True)
            elif not _is_private(name):
                yield from _docstrings(statement.body[:1], is_named=True)
            is_named = False
        else:
            is_named = isinstance(statement, ast.Assign | ast.AnnAssign) and not _is_private(
                _target(statement)
            )


def _target(statement: ast.Assign | ast.AnnAssign) -> str:
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "_")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


Functions = ast.FunctionDef | ast.AsyncFunctionDef


def begins_with_a_verb(docstring: str) -> bool:
    """True if the first word is an imperative verb, or if the docstring begins in another allowed way."""
    text = docstring.lstrip()
    first = re.split(r"[^\w-]", text, maxsplit=1)[0]
    if text.startswith(("True if", "True while", "Called ")):
        return True
    return first in VERBS and not _NO_VERB.match(text)


def _may_begin_with_a_noun(function: Functions) -> bool:
    names = [ast.unparse(each) for each in function.decorator_list]
    is_noun = any("property" in name or "fixture" in name or name.endswith(".setter") for name in names)
    return is_noun or function.name == "__init__" or function.name.startswith("test_")


def functions_without_verb(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and first words of each function's docstring that should begin with a verb and does not."""
    for node in ast.walk(tree):
        if isinstance(node, Functions) and not _may_begin_with_a_noun(node):
            text = ast.get_docstring(node)
            if text and not begins_with_a_verb(text):
                yield node.body[0].lineno, text.splitlines()[0]


def comments_and_docstrings(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield first line and text of all docstrings, private ones included, and of all comments on lines of their own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(value := node.value, ast.Constant):
            yield value.lineno, value.value if isinstance(value.value, str) else ""
    block: list[str] = []
    for number, line in enumerate((*source.splitlines(), ""), 1):
        if line.lstrip().startswith("#"):
            block.append(line.strip().lstrip("#"))
        elif block:
            yield number - len(block), " ".join(block)
            block.clear()


# -- faults -----------------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    """Split a paragraph into sentences. Code, or a list of code, counts as one word, and a link as its text."""
    plain = _LINK.sub(r"\1", _CODE_LIST.sub("CODE", _CODE.sub("CODE", text)))
    found: list[str] = []
    for part in _END.split(plain):
        if found and _ABBREVIATION.search(found[-1]):
            found[-1] += f" {part}"
        elif part.strip():
            found.append(part.strip())
    return found


def reasons(sentence: str) -> list[str]:
    """Return the faults of a sentence, in a few words each."""
    words = len(_WORD.findall(sentence)) if len(sentence) > 2 * WORDS_MAX else 0
    denials = [word.lower() for word in NEGATION.findall(sentence)]
    negations = len(denials) - (denials.count("nor") if "neither" in denials else 0)
    found = []
    if words > WORDS_MAX:
        found.append(f"{words} words")
    if negations > NEGATIONS_MAX:
        found.append(f"{negations} negations")
    found += [f'"{banned[0].lower()}"' for banned in BANNED.finditer(sentence)]
    return found


def faults_of(path: str, paragraphs: Iterator[Paragraph]) -> Iterator[Fault]:
    """Yield all faults of these paragraphs. `path` is the file's name in the output."""
    for line, text in paragraphs:
        for sentence in sentences(text):
            yield from (Fault(path, line, reason, sentence) for reason in reasons(sentence))


def faults_of_page(path: str, text: str) -> list[Fault]:
    """Return all faults of a Markdown page."""
    return list(faults_of(path, paragraphs_of_page(text)))


def faults_of_module(path: str, source: str) -> list[Fault]:
    """Return all faults of the kind `sentence` in a module's docstrings."""
    found: list[Fault] = []
    for line, text in docstrings(source):
        if re.match(r"Of\b", text.lstrip()):
            found.append(Fault(path, line, 'begins with "Of"', text.strip().splitlines()[0]))
        found += faults_of(path, paragraphs_of_docstring(text, line))
    return found + faults_of_habits(path, source)


def faults_of_habits(path: str, source: str) -> list[Fault]:
    """Return the faults of the kinds `phrase` and `verb`."""
    tree = ast.parse(source)
    found = [
        Fault(path, line, "begins with no verb in the imperative", text, "verb")
        for line, text in functions_without_verb(tree)
    ]
    for line, text in comments_and_docstrings(source, tree):
        plain = " ".join(_CODE.sub("CODE", text).split())
        found += [
            Fault(
                path,
                line,
                f'"{vague[0].lower()}"',
                plain[max(0, vague.start() - 40) : vague.end() + 40],
                "phrase",
            )
            for vague in VAGUE.finditer(plain)
        ]
    return found


def all_faults(root: Path = ROOT, kept: Path | None = None) -> dict[str, list[Fault]]:
    """Return the faults of each file that has some, by its path.

    The file `kept` stores them by the digest of each text and of the rules, so that only changed texts are read again.
    """
    rules = _digest(*(path.read_bytes() for path in (Path(__file__), ROOT / "tests/prose_verbs.txt")))
    before = _remembered(kept, rules) if kept is not None else {}
    now = {}
    for path in (*pages(root), *modules(root)):
        name = path.relative_to(root).as_posix()
        data = path.read_bytes()
        digest = _digest(name.encode(), data)
        if digest not in before:
            of = faults_of_module if path.suffix == ".py" else faults_of_page
            before[digest] = of(name, data.decode())
        now[digest] = before[digest]
    if kept is not None:
        _remember(kept, rules, now)
    return {faults[0].path: faults for faults in now.values() if faults}


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _remembered(kept: Path, rules: str) -> dict[str, list[Fault]]:
    """Return the stored faults by the digests of their texts, or none if the file is missing, damaged, or of other
    rules."""
    try:
        stored = json.loads(kept.read_text())
        found = stored["faults"].items() if stored["rules"] == rules else ()
        return {digest: [Fault(*each) for each in faults] for digest, faults in found}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _remember(kept: Path, rules: str, found: Mapping[str, Sequence[Fault]]) -> None:
    """Replace the file in one step, since other runs may be reading it. The checkout may be read-only."""
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f"{kept.name}.{os.getpid()}")
        new.write_text(json.dumps({"rules": rules, "faults": found}))
        new.replace(kept)


# -- the exceptions ------------------------------------------------------------------------------------------------


Counts = Mapping[tuple[str, str], int]
"""Numbers of faults, by kind and file."""


def counts_of(found: Mapping[str, Sequence[Fault]]) -> dict[tuple[str, str], int]:
    """Count the faults of each kind and file."""
    return dict(Counter((fault.kind, path) for path, faults in found.items() for fault in faults))


def read_exceptions(root: Path = ROOT) -> dict[tuple[str, str], int]:
    """Read the number of faults that each file may have."""
    text = (root / EXCEPTIONS).read_text()
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return {(kind, path): int(count) for count, kind, path in rows}


def write_exceptions(counts: Counts, root: Path = ROOT) -> None:
    """Replace the list."""
    head = "# Faults that a file may have; see prose.py. Only `python -m tests.prose --lower` writes here.\n"
    order = sorted(counts.items(), key=lambda row: (KINDS.index(row[0][0]), row[0][1]))
    rows = (f"{count}\t{kind}\t{path}\n" for (kind, path), count in order if count)
    (root / EXCEPTIONS).write_text(head + "".join(rows))


def raised(before: Counts, now: Counts) -> dict[tuple[str, str], int]:
    """Return by how much files exceed their counts, for each kind.

    New files may first use up the faults that old files have lost.
    """
    known = {path for _, path in before}
    left = Counter[str]()
    for key, count in before.items():
        left[key[0]] += max(0, count - now.get(key, 0))
    above = {}
    for key, count in sorted(now.items()):
        kind, path = key
        more = count - before.get(key, 0)
        if more > 0 and path not in known:
            taken = min(left[kind], more)
            left[kind] -= taken
            more -= taken
        if more > 0:
            above[key] = more
    return above


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Print faults, or lower the counts. Return 1 if a count would rise."""
    found = all_faults(root)
    if list(arguments) == ["--lower"]:
        now = counts_of(found)
        before = read_exceptions(root) if (root / EXCEPTIONS).exists() else now
        above = raised(before, now)
        for (kind, path), more in above.items():
            print(
                f"{path}: {more} more of the kind {kind} than before; `python -m tests.prose {path}` shows all",
                file=sys.stderr,
            )
        if not above:
            write_exceptions(now, root)
            print(f"{sum(before.values())} faults were allowed, now {sum(now.values())}")
        return 1 if above else 0
    wanted = {
        path: faults for path, faults in found.items() if not arguments or path.startswith(tuple(arguments))
    }
    for faults in sorted(wanted.values(), key=len):
        for fault in faults:
            print(fault)
    kinds = Counter(fault.kind for faults in wanted.values() for fault in faults)
    parts = ", ".join(f"{kinds[kind]} of the kind {kind}" for kind in KINDS)
    print(f"{sum(kinds.values())} faults in {len(wanted)} files: {parts}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
