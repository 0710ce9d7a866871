"""How long a worker thread may keep the interpreter from the event loop of a running node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from odradek.node.main import SWITCH_SECONDS
from testkit.odradek_server import prepare_odradek

NODE = """
import os, signal, sys
from odradek.node.main import serve

def started(facts):
    print("interval", sys.getswitchinterval(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

sys.exit(serve(sys.argv[1], complain=print, started=started))
"""


def test_a_running_node_takes_the_interpreter_back_from_its_workers(tmp_path: Path) -> None:
    """A running node sets its own thread switch interval. With CPython's, each request would wait 5 ms for a busy
    worker."""
    properties = prepare_odradek(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", NODE, str(properties)], capture_output=True, text=True, timeout=120, check=True
    )
    (told,) = [line for line in ran.stdout.splitlines() if line.startswith("interval ")]
    assert float(told.split()[1]) == SWITCH_SECONDS < 0.005


def test_a_node_does_not_import_numpy() -> None:
    """A node does not import numpy, which only the cleaner's companion needs. Its import would start
    numpy's threads before signals are blocked."""
    script = "import sys, odradek.node.main; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
