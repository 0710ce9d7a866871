"""From the wheel to three nodes, a topic and a group with pip, uvx and pipx, without a clone (`make test-install`).

The wheel is on an index on loopback, and its dependencies come from pip's own index. The user's directory has files
with hostile names.
"""

from __future__ import annotations

import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from testkit.processes import base_port
from tests.docs.markdown import ROOT
from tests.hostile_names import lay_out
from tests.install.distributions import build, clone

TOOLS = ROOT / ".cache" / "install-tools" / "bin"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SECONDS_MAX = 600.0
pytestmark = [
    pytest.mark.install,
    pytest.mark.skipif(not TOOLS.exists(), reason="make test-install installs uv, pipx and twine"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    return build("wheel", clone(folder / "sources"), folder / "odradek")


@pytest.fixture(scope="module")
def index(wheel: Path) -> Iterator[str]:
    """Serve a simple index (PEP 503) with only our wheel, on loopback."""
    folder = wheel.parent.parent / "simple"
    (folder / "odradek").mkdir(parents=True)
    shutil.copy(wheel, folder / "odradek")
    (folder / "odradek" / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    handler = partial(_Quiet, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Make a user's directory with files that are named like parts of Odradek."""
    folder = tmp_path / "project"
    folder.mkdir()
    lay_out(folder)
    return folder


def _environment(home: Path) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV", "UV_"))
    }
    return kept | {
        "PIPX_HOME": str(home / "pipx"),
        "UV_CACHE_DIR": str(home / "uv"),
        "UV_PYTHON_DOWNLOADS": "never",
    }


def _find(version: str) -> str:
    """Find a Python on the path or where pyenv keeps it. Skip the test if there is none."""
    for of_pyenv in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")):
        return str(of_pyenv)
    found = subprocess.run(
        [TOOLS / "uv", "python", "find", "--no-python-downloads", "--no-project", version],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"Python {version} is not on this machine")
    return found.stdout.strip()


@contextmanager
def _dev(words: list[str], here: Path, env: dict[str, str], port: int) -> Iterator[None]:
    """Run `odradek dev` with three nodes while the block runs."""
    command = [*words, "dev", "--nodes", "3", "--port", str(port), "--data", str(here / "data")]
    with subprocess.Popen(
        command, cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as dev:
        timer = threading.Timer(SECONDS_MAX, dev.kill)
        timer.start()
        try:
            assert dev.stdout is not None
            seen = []
            for line in dev.stdout:
                seen.append(line)
                if re.match(r"ready\b", line):
                    break
            else:
                pytest.fail("".join(seen))
            yield
        finally:
            timer.cancel()
            dev.send_signal(signal.SIGINT)
            dev.communicate()


def _use(words: list[str], here: Path, env: dict[str, str]) -> None:
    """Create a topic on three nodes, write to it, and read it in a group."""

    def run(*more: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*words, *more],
            cwd=here,
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, (more, done.stdout, done.stderr)
        return done.stdout

    port = base_port(12)
    server = ("--bootstrap-server", f"127.0.0.1:{port}")
    with _dev(words, here, env, port):
        assert re.fullmatch(r"odradek \S+ \(commit [0-9a-f]{40}\)\n", run("--version"))
        assert "3 replicas" in run("topic", "create", "words", "--partitions", "3", *server)
        run("produce", "words", *server, stdin="hello\nworld\n")
        read = run(
            "consume", "words", "--group", "readers", "--from", "earliest", "--max-messages", "2", *server
        )
        assert sorted(read.split()) == ["hello", "world"]
        assert "readers" in run("group", "list", *server)


@pytest.mark.parametrize("version", PYTHONS)
def test_pip(version: str, wheel: Path, here: Path, tmp_path: Path) -> None:
    """With pip, an environment of each Python gets only the wheel and its dependencies, and three nodes work."""
    env = _environment(tmp_path)
    venv = tmp_path / "venv"
    subprocess.run([_find(version), "-m", "venv", venv], check=True, env=env)
    subprocess.run([venv / "bin" / "pip", "install", "-q", wheel], check=True, env=env, timeout=SECONDS_MAX)
    _use([str(venv / "bin" / "odradek")], here, env)


def test_uvx(index: str, here: Path, tmp_path: Path) -> None:
    """With `uvx odradek dev`, three nodes work."""
    _use(
        [str(TOOLS / "uvx"), "--index", index, "--python", sys.executable, "odradek"],
        here,
        _environment(tmp_path),
    )


def test_pipx_run(index: str, here: Path, tmp_path: Path) -> None:
    """With `pipx run odradek dev`, three nodes work."""
    extra = [f"--pip-args=--extra-index-url={index}", "--python", sys.executable]
    _use([str(TOOLS / "pipx"), "run", *extra, "odradek"], here, _environment(tmp_path))


def test_package_pages_are_sound(wheel: Path) -> None:
    """`twine check --strict` finds nothing in the metadata."""
    done = subprocess.run(
        [TOOLS / "twine", "check", "--strict", wheel], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_imports_none_of_the_server(wheel: Path, tmp_path: Path) -> None:
    """A producer and a consumer import attrs and codecs, but not numpy, RE2, cryptography, trio or structlog."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    needed = ["attrs", "cramjam", "crc32c", "lz4", "zstandard"]
    pip = [venv / "bin" / "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, *needed], check=True, timeout=SECONDS_MAX)
    subprocess.run([*pip, "--no-deps", wheel], check=True, timeout=SECONDS_MAX)
    program = "import odradek; print(odradek.Producer, odradek.Consumer, odradek.Admin)"
    done = subprocess.run(
        [venv / "bin" / "python", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
