"""Reads commands, programs and their output from a page of documentation."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    """A fenced block. `output` is the text block right behind it, or empty."""

    language: str
    code: str
    output: str
    line: int


def blocks(page: str, language: str) -> list[Block]:
    """Return the blocks of a language on a page, in order."""
    text = (ROOT / page).read_text()
    found = list(_BLOCK.finditer(text))
    result = []
    for number, match in enumerate(found):
        following = found[number + 1] if number + 1 < len(found) else None
        has_output = (
            following is not None
            and following[1] == "text"
            and not text[match.end() : following.start()].strip()
        )
        output = following[2] if has_output and following is not None else ""
        if match[1] == language:
            result.append(Block(language, match[2], output, text.count("\n", 0, match.start()) + 1))
    return result


def prose(page: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
