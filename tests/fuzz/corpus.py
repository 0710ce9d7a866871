"""The kept inputs. `corpus/NAME.txt` has one input per line, in base64. A line with `#` says why the next input was
kept."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"
KEPT_BYTES_MAX = 24_000
"""The most bytes that all finds of a target may take in its corpus file. Crashes are kept whatever their size."""


def kept(name: str) -> list[bytes]:
    """Return all kept inputs of a target."""
    return [base64.b64decode(line) for line in _lines(name) if not line.startswith("#")]


def keep_crash(name: str, data: bytes, reason: str) -> bool:
    """Put an input with its reason at the front of the corpus. Return False if it is there already."""
    line = base64.b64encode(data).decode()
    lines = _lines(name)
    if line in lines:
        return False
    _write(name, [f"# {reason}", line, *lines])
    return True


def keep_finds(name: str, found: Iterable[bytes]) -> int:
    """Replace the earlier finds of a fuzzer by new ones, the smallest first. Return how many are kept."""
    lines = _lines(name)
    explained = [at for at, line in enumerate(lines) if line.startswith("#")]
    crashes = [line for at in explained for line in lines[at : at + 2]]
    chosen: list[str] = []
    room = KEPT_BYTES_MAX
    for data in sorted(set(found), key=lambda each: (len(each), each)):
        line = base64.b64encode(data).decode()
        room -= len(line) + 1
        if room < 0:
            break
        if line not in crashes:
            chosen.append(line)
    _write(name, [*crashes, *chosen])
    return len(chosen)


def _lines(name: str) -> list[str]:
    path = FOLDER / f"{name}.txt"
    return path.read_text().splitlines() if path.exists() else []


def _write(name: str, lines: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
