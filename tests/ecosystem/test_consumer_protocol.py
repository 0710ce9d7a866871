"""franz-go and @platformatic/kafka in groups of the consumer protocol (KIP-848), while their coordinator and a leader are killed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.ecosystem.test_go_clients import built
from tests.other_clients.consumer_protocol.programs import LIBRDKAFKA, Kind, Place, our_event
from tests.other_clients.consumer_protocol.scenario import play, three_nodes

pytestmark = pytest.mark.ecosystem

SOURCES = Path(__file__).parent / "node"
INSTALL_SECONDS = 300
ROUNDS = 3


def test_franz_go(tmp_path: Path) -> None:
    """Three clients of franz-go with ServerSideBalancer read each acknowledged record, and no committed offset goes
    back."""
    program = built(tmp_path)

    def command(place: Place) -> list[str]:
        return [str(program), "share", place.bootstrap, place.group, place.topic]

    franz_go = Kind("franz-go", command, our_event)
    with three_nodes(tmp_path) as cluster:
        play(cluster, [franz_go] * 3, tmp_path, rounds=ROUNDS)


def test_platformatic(tmp_path: Path) -> None:
    """Three consumers of @platformatic/kafka read each acknowledged record, and no committed offset goes back."""
    share_by_node(tmp_path, ROUNDS, "platformatic", "platformatic", "platformatic")


def test_platformatic_beside_librdkafka(tmp_path: Path) -> None:
    """Consumers of @platformatic/kafka and librdkafka read each acknowledged record of their common topic."""
    share_by_node(tmp_path, 1, "platformatic", "librdkafka", "platformatic")


def share_by_node(directory: Path, rounds: int, *names: str) -> None:
    """Let members share a topic on three nodes, those of @platformatic/kafka among them."""
    node, program = installed()

    def command(place: Place) -> list[str]:
        return [str(node), str(program), place.bootstrap, place.group, place.topic]

    platformatic = Kind("platformatic", command, our_event, says_what_it_owns=False)
    kinds = {"platformatic": platformatic, "librdkafka": LIBRDKAFKA}
    with three_nodes(directory) as cluster:
        play(cluster, [kinds[name] for name in names], directory, rounds=rounds)


def installed() -> tuple[Path, Path]:
    """Install the program's packages, a Node.js among them, with the hashes of its lock file.

    Return the paths of Node.js and of the program. Skip the test if npm or its registry is missing.
    """
    if shutil.which("npm") is None:
        pytest.skip("no npm on the path")
    files = sorted(SOURCES.iterdir())
    contents = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:16]
    directory = Path.home() / ".cache" / "odradek-ecosystem" / f"node-{contents}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as fresh:
            install_into(Path(fresh) / "node", files)
            (Path(fresh) / "node").rename(directory)
    nodes = list(directory.glob("node_modules/node-linux-*/bin/node"))
    if not nodes:
        pytest.skip("the lock file has no Node.js for this machine")
    return nodes[0], directory / "member.mjs"


def install_into(directory: Path, files: Sequence[Path]) -> None:
    """Copy these files, and install what their lock file says. Skip the test if npm cannot."""
    directory.mkdir()
    for each in files:
        shutil.copy(each, directory)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install @platformatic/kafka: {done.stderr[-300:]}")
