"""The terminal while `odradek top` owns it: its own screen, no echo, single keys; and everything back at the end."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType

from odradek.env.real_descriptors import readable

__all__ = ["RawTerminal"]

_ENTER = "\033[?1049h\033[?25l"
_LEAVE = "\033[?25h\033[?1049l"
_KEYS = {
    "\033[A": "up",
    "\033[B": "down",
    "\033[5~": "page up",
    "\033[6~": "page down",
    "\033[H": "home",
    "\033OA": "up",
    "\033OB": "down",
    "\033": "escape",
}


class RawTerminal:
    """The terminal on standard input and output, as a context manager. However the block ends, the screen and the
    settings from before are back.
    """

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._settings: list[int | list[bytes | int]] = []
        self._stop_before: object = None
        self._is_stop_wanted = False
        self.screens = 0
        """The number of blank screens so far: the first one, and one after each return from the shell."""

    def __enter__(self) -> RawTerminal:
        self._settings = termios.tcgetattr(self._in)
        self._stop_before = signal.signal(signal.SIGTSTP, self._note_stop)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
        signal.signal(signal.SIGTSTP, self._stop_before)  # type: ignore[arg-type] # what signal() returned

    def _enter(self) -> None:
        tty.setcbreak(self._in)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        self.screens += 1

    def _leave(self) -> None:
        try:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
        finally:
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._settings)

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stop_wanted = True

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the screen by these lines."""
        sys.stdout.write("\033[H" + "\033[K\r\n".join(lines) + "\033[K\033[J")
        sys.stdout.flush()

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys, at most this many seconds, and return their names. If the user suspends the command (Ctrl-Z),
        the shell has its terminal until the command goes on.
        """
        if self._is_stop_wanted:
            self._is_stop_wanted = False
            self._leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._enter()
        if not readable([self._in], seconds):
            return []
        data = os.read(self._in, 1024)
        if not data:
            return ["q"]
        text = data.decode(errors="replace")
        return _split(text)


def _split(text: str) -> list[str]:
    """Split what a terminal sends into keys. An arrow is several characters, which arrive together."""
    found = []
    while text:
        known = next((code for code in _KEYS if text.startswith(code) and len(code) > 1), text[0])
        if known == "\033" and text[1:2] in ("[", "O"):
            # A key without a meaning here: its code ends with a letter or a tilde.
            end = next((n for n, each in enumerate(text[2:], 3) if each.isalpha() or each == "~"), len(text))
            text = text[end:]
            continue
        found.append(_KEYS.get(known, known))
        text = text[len(known) :]
    return found
