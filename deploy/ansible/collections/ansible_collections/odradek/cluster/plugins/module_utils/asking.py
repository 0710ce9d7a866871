"""Runs the command `odradek` on a host to get facts of a cluster, and formats lists for sentences."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_ASK_SECONDS = 10
_PATIENCE_SECONDS = 2.0
_ASKED_ALONE_MAX = 3
_ANSWERED: dict[str, str] = {}
"""For each list of addresses, the address in it that answered last. The next question goes to this address first,
because a module that waits asks many times.
"""


def ask(odradek: str, bootstrap: str, *words: str) -> tuple[dict | None, str]:
    """Run `odradek WORDS --json`. Return (the JSON object, ""), or (None, the last line of the error).

    A broker that hangs accepts a connection, but never answers. So after a short silence, some brokers are asked in
    parallel, each by a separate command, and the first answer is used.
    """
    alone = bootstrap.split(",")[:_ASKED_ALONE_MAX] if "," in bootstrap else []
    turns = list(dict.fromkeys((_ANSWERED.get(bootstrap, bootstrap), bootstrap, *alone)))
    answers: queue.Queue[tuple[str, dict | None, str]] = queue.Queue()
    running: list[subprocess.Popen] = []
    complaints: dict[str, str] = {}
    left = len(turns)
    try:
        while left:
            if turns:
                _begin(odradek, turns.pop(0), words, running, answers)
            with contextlib.suppress(queue.Empty):
                address, found, complaint = answers.get(timeout=_PATIENCE_SECONDS)
                left -= 1
                if found is not None:
                    _ANSWERED[bootstrap] = address
                    return found, ""
                complaints[address] = complaint
    finally:
        for process in running:
            process.kill()
            process.wait()
    return None, complaints[bootstrap]


def ask_together(
    odradek: str, bootstrap: str, questions: Sequence[tuple[str, ...]]
) -> list[tuple[dict | None, str]]:
    """Ask several questions at the same time, as `ask` does; return the answers in the order of the questions."""
    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda words: ask(odradek, bootstrap, *words), questions))


def _begin(
    odradek: str, address: str, words: tuple[str, ...], running: list[subprocess.Popen], answers: queue.Queue
) -> None:
    """Start the command with one address or a list of addresses, and add it to `running`. Its answer is put into the
    queue.
    """
    command = [odradek, *words, "--json", "--timeout", str(_ASK_SECONDS), "--bootstrap-server", address]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        answers.put((address, None, str(error)))
        return
    running.append(process)

    def wait() -> None:
        try:
            out, err = process.communicate(timeout=_ASK_SECONDS * 3)
            answers.put((address, json.loads(out), ""))
        except subprocess.TimeoutExpired as error:
            answers.put((address, None, str(error)))
        except ValueError:
            lines = err.strip().splitlines() or ["no answer"]
            answers.put((address, None, lines[-1].removeprefix("odradek: ")))

    threading.Thread(target=wait, daemon=True).start()


def some(names: list, most: int = 5) -> str:
    """Return the first `most` names, and how many more there are."""
    text = ", ".join(map(str, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text
