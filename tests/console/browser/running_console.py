"""The console as a process of its own, over a cluster that runs already."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from odradek.console.settings import ConsoleSettings

__all__ = ["console"]

SECONDS_MAX = 30.0


@contextmanager
def console(bootstrap: str, client: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run the console on a free port of loopback, and yield its address. `client` has keys for its connections."""
    settings = ConsoleSettings(bootstrap=bootstrap, client=dict(client or {}))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        read, write = os.pipe()
        os.write(write, settings.encode() + b"\n")
        os.close(write)
        words = ["--socket", str(listener.fileno()), "--settings", str(read)]
        process = subprocess.Popen(
            [sys.executable, "-m", "odradek.console", *words], pass_fds=(listener.fileno(), read)
        )
        os.close(read)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert process.poll() is None, "the console has ended"
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)
