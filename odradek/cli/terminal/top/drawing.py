"""What `odradek top` draws, and what its keys do: from a state and two samples to the lines of a screen. PURE.

A screen may be tiny. Lines that do not fit are left out from the bottom, and columns are cut at the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from odradek.cli.output import BOLD, RED, YELLOW, counted, plain
from odradek.cli.streams.screen_columns import cut_to_columns, left_in_columns, right_in_columns, width_of
from odradek.cli.terminal.top.views import (
    VIEWS,
    Cell,
    Table,
    cell_text,
    ordered,
    problems,
    table_of,
    total_rate,
)

if TYPE_CHECKING:
    from odradek.cli.terminal.top.sampling import Sample

__all__ = ["KEYS_HELP", "View", "press", "screen_lines"]

KEYS_HELP = "1-5 Tab view  s sort  r reverse  / filter  arrows scroll  space pause  q quit"
_PAGE = 10
_HEAD_LINES = 5
_REVERSED = "7"

Paint = Callable[[str, str], str]
"""A function that puts a text into a colour: `paint(code, text)`. Without colours it returns the text."""


@attrs.define
class View:
    """What the user has chosen. `columns` has the sorted column of each view, `reversed_views` the views that begin with
    the smallest value.
    """

    name: str = "topics"
    columns: dict[str, int] = attrs.field(factory=dict)
    reversed_views: set[str] = attrs.field(factory=set)
    pattern: str = ""
    is_typing: bool = False
    is_paused: bool = False
    first: int = 0
    """The number of the first row that is shown."""
    is_over: bool = False


def press(view: View, key: str, columns: int) -> None:
    """Change the view as a key asks. `columns` is the number of columns of the table that is shown."""
    if view.is_typing:
        _type(view, key)
        return
    match key:
        case "q" | "Q":
            view.is_over = True
        case "\t":
            view.name = VIEWS[(VIEWS.index(view.name) + 1) % len(VIEWS)]
            view.first = 0
        case "1" | "2" | "3" | "4" | "5":
            view.name = VIEWS[int(key) - 1]
            view.first = 0
        case "s":
            view.columns[view.name] = (view.columns.get(view.name, -1) + 1) % max(1, columns)
        case "r":
            view.reversed_views ^= {view.name}
        case "/":
            view.is_typing, view.pattern, view.first = True, "", 0
        case "escape":
            view.pattern = ""
        case " ":
            view.is_paused = not view.is_paused
        case "down" | "j":
            view.first += 1
        case "up" | "k":
            view.first = max(0, view.first - 1)
        case "page down":
            view.first += _PAGE
        case "page up":
            view.first = max(0, view.first - _PAGE)
        case "home":
            view.first = 0


def _type(view: View, key: str) -> None:
    if key in ("\r", "\n"):
        view.is_typing = False
    elif key == "escape":
        view.is_typing, view.pattern = False, ""
    elif key == "\x7f":
        view.pattern = view.pattern[:-1]
    elif len(key) == 1 and key.isprintable():
        view.pattern += key


def screen_lines(
    view: View,
    before: Sample | None,
    now: Sample | None,
    note: str,
    size: tuple[int, int],
    paint: Paint,
) -> list[str]:
    """Make the lines of the screen, each at most as wide as `size` (columns, lines). `note` is the error of the last
    round, or empty.
    """
    columns, lines = size
    head = _head(view, before, now, note, columns, paint)
    if now is None:
        return head[:lines]
    table = table_of(view.name, before, now)
    column = view.columns.setdefault(view.name, table.order) % len(table.columns)
    # Texts and ids begin with the smallest, figures with the largest.
    largest_first = table.columns[column].kind not in ("text", "id")
    rows = ordered(
        table, column, descending=largest_first ^ (view.name in view.reversed_views), pattern=view.pattern
    )
    room = max(0, lines - len(head) - 2)
    view.first = max(0, min(view.first, len(rows) - room))
    shown = rows[view.first : view.first + room]
    body = _body(table, shown, column, columns, paint)
    space = [""] * max(0, lines - len(head) - len(body) - 1)
    return [*head, *body, *space, _foot(view, len(rows), len(shown), columns, paint)][:lines]


def _head(
    view: View, before: Sample | None, now: Sample | None, note: str, columns: int, paint: Paint
) -> list[str]:
    tabs = "  ".join(
        f"[{number} {name}]" if name == view.name else f" {number} {name} "
        for number, name in enumerate(VIEWS, 1)
    )
    if now is None:
        text = note or "asking the cluster..."
        return [
            paint(BOLD, "odradek top"),
            paint(RED, cut_to_columns(plain(text), columns)) if note else text[:columns],
        ]
    cluster, found = now.picture.cluster, now.picture.partitions
    wrong = problems(now)
    grave = [each for each in wrong if not each.is_warning]
    rate = total_rate(before, now)
    first = f"cluster {cluster.cluster_id}" + (", paused" if view.is_paused else "")
    second = (
        f"{counted(len(cluster.brokers), 'broker')}, {counted(len(now.picture.topics), 'topic')}, "
        f"{counted(found.total, 'partition')}, {counted(len(now.groups), 'group')}"
        + ("" if rate is None else f", {cell_text('rate', rate)} records in")
    )
    if note:
        state, colour = f"no answer now: {note}", RED
    elif now.missing:
        state, colour = f"some figures are missing: {now.missing}", YELLOW
    elif wrong:
        more = f" (and {counted(len(wrong) - 1, 'more problem')})" if len(wrong) > 1 else ""
        state, colour = f"{wrong[0].text}{more}", RED if grave else YELLOW
    else:
        state, colour = "healthy", ""
    state = cut_to_columns(plain(state), columns)
    return [
        paint(BOLD, first[:columns]),
        second[:columns],
        paint(colour, state) if colour else state,
        tabs[:columns],
        "",
    ]


def _body(table: Table, rows: list[tuple[Cell, ...]], column: int, columns: int, paint: Paint) -> list[str]:
    """Format the heading and the rows. Numbers stand at the right of their column. The sorted column has a mark."""
    heading = [
        f"{each.name}*" if number == column else each.name for number, each in enumerate(table.columns)
    ]
    cells = [
        [plain(cell_text(each.kind, value)) for each, value in zip(table.columns, row, strict=True)]
        for row in rows
    ]
    widths = [max(width_of(line[number]) for line in [heading, *cells]) for number in range(len(heading))]

    def line(texts: list[str]) -> str:
        parts = [
            right_in_columns(text, width) if each.kind != "text" else left_in_columns(text, width)
            for text, width, each in zip(texts, widths, table.columns, strict=True)
        ]
        return cut_to_columns("  ".join(parts).rstrip(), columns)

    texts = [paint(_REVERSED, left_in_columns(line(heading), columns))]
    for row, shown in zip(rows, cells, strict=True):
        is_bad = any(cell in ("DOWN", "SILENT", "OFFLINE", "FULL", "HUNG") for cell in row)
        texts.append(paint(RED, line(shown)) if is_bad else line(shown))
    return texts


def _foot(view: View, total: int, shown: int, columns: int, paint: Paint) -> str:
    if view.is_typing:
        return cut_to_columns(f"filter: {plain(view.pattern)}_", columns)
    place = f"{view.first + 1}-{view.first + shown} of {total}" if shown < total else f"{total}"
    chosen = f"  filter {plain(view.pattern)} (Esc ends it)" if view.pattern else ""
    return paint(BOLD, cut_to_columns(f"{place}{chosen}  {KEYS_HELP}", columns))
