"""The Containerfile is checked by hadolint. Its steps are run by hand, since the tests have no container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from testkit.processes import base_port
from tests.docs.markdown import ROOT
from tests.install.distributions import build, clone
from tests.install.test_ways_in import SECONDS_MAX, TOOLS, _find

CONTAINERFILE = ROOT / "Containerfile"
pytestmark = [
    pytest.mark.install,
    pytest.mark.skipif(not (TOOLS / "hadolint").exists(), reason="make test-install installs hadolint"),
]


def _instructions() -> list[tuple[str, str]]:
    """Return the instructions with their arguments; continued lines are joined, comments left out."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def test_the_linter_finds_nothing() -> None:
    """hadolint reports no fault in the instructions or in their shell commands."""
    done = subprocess.run([TOOLS / "hadolint", CONTAINERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_steps_give_a_node(tmp_path: Path) -> None:
    """The first stage builds the environment from the wheel and the locked hashes. The entry point and the command
    start a node in this environment."""
    sources = clone(tmp_path / "sources")
    build("wheel", sources, sources / "dist")
    steps = _instructions()
    image = re.match(r"python:([\d.]+)-slim", steps[0][1])
    assert image is not None
    python = _find(image[1])

    def here(text: str) -> str:
        """Put paths of the image below a directory of this test."""
        return re.sub(r"(?<![\w.])/(?=build|opt/|var/)", f"{tmp_path}/", text)

    (tmp_path / "opt").mkdir()
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "python").symlink_to(python)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env["PATH"] = f"{tmp_path / 'path'}:{env['PATH']}"
    stage = steps[1 : [name for name, _ in steps].index("FROM", 1)]
    assert [name for name, _ in stage] == ["COPY", "COPY", "RUN"]
    for name, words in stage:
        if name == "COPY":
            pattern, folder = words.split()
            Path(here(folder)).mkdir(parents=True, exist_ok=True)
            for path in sources.glob(pattern):
                shutil.copy(path, here(folder))
        else:
            subprocess.run(["sh", "-ec", here(words)], env=env, check=True, timeout=SECONDS_MAX)
    known = dict(steps)
    command = [*json.loads(known["ENTRYPOINT"]), *json.loads(here(known["CMD"])), "--port", str(base_port(1))]
    folders = here(known["ENV"].removeprefix("PATH=").split(":")[0])
    Path(here(known["WORKDIR"])).mkdir(parents=True)
    with subprocess.Popen(
        [f"{folders}/{command[0]}", *command[1:]],
        cwd=here(known["WORKDIR"]),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as node:
        timer = threading.Timer(SECONDS_MAX, node.kill)
        timer.start()
        assert node.stdout is not None
        seen: list[str] = []
        while not (seen and seen[-1].startswith("ready")):
            line = node.stdout.readline()
            assert line, "".join(seen)
            seen.append(line)
        timer.cancel()
        node.send_signal(getattr(signal, known["STOPSIGNAL"]))
        node.communicate()
