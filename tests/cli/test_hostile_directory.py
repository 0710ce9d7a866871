"""A working directory with files named like Odradek's former top-level modules: Odradek never imports them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek import Admin, Consumer, Producer
from odradek.client.admin import NewTopic
from testkit.processes import base_port
from tests.hostile_names import lay_out

pytestmark = pytest.mark.xdist_group("cli")
SECONDS_MAX = 60.0
JOB = """
import sys
from odradek import Admin, Consumer, Producer
from odradek.client.admin import NewTopic

bootstrap = sys.argv[1]
with Admin(bootstrap_servers=bootstrap) as admin:
    admin.create_topics([NewTopic("beside", 1, 1)])
with Producer(bootstrap_servers=bootstrap) as producer:
    producer.send("beside", b"a value").result(30)
with Consumer(bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["beside"])
    while not (records := consumer.poll(1)):
        pass
print(records[0].value.decode())
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A user's directory with a job and modules of the user's own."""
    lay_out(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def environment() -> dict[str, str]:
    """Return our environment without PYTHONPATH and PYTHONSAFEPATH."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}


def run(here: Path, *words: str) -> str:
    """Run Python in that directory, whose modules come first on its path; return the output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=here,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(here: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command that prints `ready` once it serves."""
    process = subprocess.Popen(
        [sys.executable, *words], cwd=here, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.rstrip() == "ready":
                break
        assert process.poll() is None
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0


def test_node_client_commands_and_mirror(here: Path) -> None:
    """Node, client, commands and mirror work with this directory first on the path, by `python -m` or by a script in
    it."""
    port, other = base_port(1), base_port(1)
    bootstrap, target = f"127.0.0.1:{port}", f"127.0.0.1:{other}"
    with (
        running(here, "-m", "odradek", "dev", "--port", str(port)),
        running(here, "-m", "odradek", "dev", "--port", str(other), "--data", "other"),
    ):
        assert run(here, "job.py", bootstrap) == "a value\n"
        assert "beside" in run(here, "-m", "odradek", "topic", "list", "--bootstrap-server", bootstrap)
        run(here, "-m", "odradek", "mirror", "--source", bootstrap, "--target", target, "--topic", "beside")
        words = ("consume", "beside", "--bootstrap-server", target)
        assert run(here, "-m", "odradek", *words) == "a value\n"
    with running(here, "-m", "odradek", "server", "data/node-1.properties"):
        assert run(here, "-m", "odradek", "consume", "beside", "--bootstrap-server", bootstrap) == "a value\n"


def test_the_companion_of_a_node(here: Path) -> None:
    """A node's companion process starts in the same directory, and still cleans a compacted topic."""
    port = base_port(1)
    bootstrap = f"127.0.0.1:{port}"
    with running(here, "-m", "odradek", "dev", "--port", str(port)):
        properties = here / "data" / "node-1.properties"
        properties.write_text(properties.read_text() + "log.cleaner.backoff.ms=100\n")
    with running(here, "-m", "odradek", "server", str(properties)):
        configs = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0"}
        with Admin(bootstrap_servers=bootstrap) as admin:
            (made,) = admin.create_topics([NewTopic("compact", 1, 1, configs)])
            assert made.error is None
        deadline = time.monotonic() + SECONDS_MAX
        with (
            Producer(bootstrap_servers=bootstrap) as producer,
            Consumer(bootstrap_servers=bootstrap) as reader,
        ):
            reader.assign([("compact", 0)])
            first_of_all = 0
            while not first_of_all:
                # Every few records make a new segment, and the cleaner keeps only the newest record of the key.
                producer.send("compact", b"value", b"key").result(SECONDS_MAX)
                reader.seek(("compact", 0), 0)
                while not (records := reader.poll(1)):
                    assert time.monotonic() < deadline, "the consumer read no record"
                first_of_all = records[0].offset
                assert time.monotonic() < deadline, "the cleaner removed no record"


@pytest.mark.parametrize("name", ["wire", "metadata_quorum", "data_plane", "spark"])
def test_a_folder_of_the_sources_has_no_second_name(name: str) -> None:
    """In a checkout, importing a source folder as a top-level package fails and names the right import."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = f"ImportError: {name!r} is only a folder of Odradek's sources: write `import odradek.{name}`"
    assert done.stderr.splitlines()[-1] == said


@pytest.mark.parametrize("folder", ["", "odradek/"])
def test_a_breakpoint_holds_by_both_names_of_a_file(tmp_path: Path, folder: str) -> None:
    """In a checkout, a breakpoint works by either name of a file, because `.pdbrc` lets pdb resolve links."""
    root = Path(__file__).parents[2]
    lines = (root / "wire" / "uuid_text.py").read_text().splitlines()
    number = 1 + next(number for number, line in enumerate(lines) if line.startswith("    return "))
    job = tmp_path / "job.py"
    job.write_text("from odradek.wire.uuid_text import uuid_from_text\nuuid_from_text('A' * 22)\n")
    done = subprocess.run(
        [sys.executable, "-m", "pdb", str(job)],
        input=f"b {folder}wire/uuid_text.py:{number}\nc\nw\nq\n",
        cwd=root,
        env=environment() | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert f"wire/uuid_text.py({number})" in done.stdout.rpartition("(Pdb) ")[0].rpartition("(Pdb) ")[2], done
