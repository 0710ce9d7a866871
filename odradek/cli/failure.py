"""The failure of a command: one line with the cause and the remedy, and an exit code."""

from __future__ import annotations

__all__ = ["FAILURE", "USAGE", "CliError"]

FAILURE = 1
USAGE = 2


class CliError(Exception):
    """Raised to end the command; the text is printed to stderr as one line."""

    def __init__(self, text: str, exit_code: int = FAILURE) -> None:
        super().__init__(" ".join(text.split()))
        self.exit_code = exit_code
