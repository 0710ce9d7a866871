"""A change of a function, written like a diff of its normal form.

    - if epoch < 0:
    + if epoch < 1:

Lines with `-` are removed, lines with `+` are added, and lines with a space stay and show the place. `...` separates
two places of one function. A place with a single `-` line may name only a part of a line. Each place must occur in the
function exactly once.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import attrs

ELSEWHERE = "..."


class Misfit(ValueError):
    """A change that does not fit its function."""


@attrs.frozen
class Hunk:
    """A place in a function: the lines that must be there, and the lines that replace them."""

    old: tuple[str, ...]
    new: tuple[str, ...]


def changed(text: str, change: str) -> str:
    """Return a function's normal form with a change applied. Raises `Misfit` unless each place occurs exactly once."""
    result = text
    for hunk in hunks(change):
        result = _with_hunk(result, hunk)
    if result == text:
        raise Misfit(f"nothing is changed by\n{change}")
    return result


def first_line(text: str, change: str) -> int:
    """Return the number of the line in the normal form at which a change begins."""
    before, after = text.splitlines(), changed(text, change).splitlines()
    return next(
        (at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before) - 1
    )


def hunks(change: str) -> Iterator[Hunk]:
    """Split a change into its places."""
    lines: list[str] = []
    for line in [*textwrap.dedent(change).strip("\n").splitlines(), ELSEWHERE]:
        if line.strip() != ELSEWHERE:
            lines.append(f"{line:2}")
            continue
        if wrong := [each for each in lines if each[:2] not in ("- ", "+ ", "  ")]:
            raise Misfit(f"a line begins with '- ', '+ ' or two spaces, unlike {wrong[0]!r}")
        indent = min(len(each) - len(each[2:].lstrip()) for each in lines if each[2:].strip())
        yield Hunk(
            tuple(each[indent:] for each in lines if each[0] != "+"),
            tuple(each[indent:] for each in lines if each[0] != "-"),
        )
        lines = []


def _with_hunk(text: str, hunk: Hunk) -> str:
    lines = text.splitlines()
    places = [at for at in range(len(lines)) if _stands_at(lines, at, hunk.old)]
    if len(places) == 1:
        at = places[0]
        lines[at : at + len(hunk.old)] = [_indent(lines[at]) + line if line else line for line in hunk.new]
        return "\n".join(lines)
    if not places and len(hunk.old) == 1:
        return _with_part(text, hunk)
    raise Misfit(f"this is there {len(places)} times:\n" + "\n".join(hunk.old) + f"\n\nin\n\n{text}")


def _stands_at(lines: Sequence[str], at: int, old: Sequence[str]) -> bool:
    indent = _indent(lines[at])
    return [indent + line for line in old] == list(lines[at : at + len(old)])


def _with_part(text: str, hunk: Hunk) -> str:
    (old,) = hunk.old
    if text.count(old) != 1:
        raise Misfit(f"this is there {text.count(old)} times:\n{old}\n\nin\n\n{text}")
    before = text[: text.index(old)]
    indent = _indent(before[before.rfind("\n") + 1 :])
    return text.replace(old, f"\n{indent}".join(hunk.new))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
