"""Questions to a cluster, by the command `odradek` on the host, and sentences made of the answers."""

from __future__ import annotations

import json
import subprocess

_ASK_SECONDS = 10
_ASKED_ALONE_MAX = 3


def ask(odradek: str, bootstrap: str, *words: str) -> tuple[dict | None, str]:
    """Run `odradek WORDS --json`; return the document, or None and the last line of its error.

    A broker that hangs takes a connection and never answers, so some are also asked one by one.
    """
    addresses = bootstrap.split(",")
    trouble = ""
    for asked in (bootstrap, *addresses[:_ASKED_ALONE_MAX]) if len(addresses) > 1 else (bootstrap,):
        found, complaint = _asked(odradek, asked, words)
        if found is not None:
            return found, ""
        trouble = trouble or complaint
    return None, trouble


def _asked(odradek: str, bootstrap: str, words: tuple[str, ...]) -> tuple[dict | None, str]:
    command = [odradek, *words, "--json", "--timeout", str(_ASK_SECONDS), "--bootstrap-server", bootstrap]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS * 3)
        return json.loads(done.stdout), ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["no answer"]
        return None, lines[-1].removeprefix("odradek: ")


def some(names: list, most: int = 5) -> str:
    """Write the first names, and how many more there are."""
    text = ", ".join(map(str, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text
