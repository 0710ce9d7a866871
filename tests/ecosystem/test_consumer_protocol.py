"""franz-go and @platformatic/kafka in groups of the consumer protocol (KIP-848), while their coordinator and a leader are killed."""

from __future__ import annotations

import shutil
import subprocess
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
    """Members of @platformatic/kafka, restarted by a parent, share a topic with librdkafka and read each acknowledged
    record."""
    directory = installed(tmp_path)

    def command(place: Place) -> list[str]:
        return ["node", str(directory / "member.mjs"), place.bootstrap, place.group, place.topic]

    platformatic = Kind("platformatic", command, our_event, says_what_it_owns=False, stalls=False)
    with three_nodes(tmp_path) as cluster:
        play(cluster, [platformatic, LIBRDKAFKA, platformatic], tmp_path, rounds=1)


def installed(target: Path) -> Path:
    """Install the program's packages with the hashes of its lock file. Skip the test without Node.js and npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node or no npm on the path")
    directory = target / "node"
    shutil.copytree(SOURCES, directory)
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
    return directory
