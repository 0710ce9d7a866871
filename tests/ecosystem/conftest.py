"""Three real nodes for programs of others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import FASTER, Cluster
from jepsen_tests.systems import Odradek


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes that serve, with replication factor 3 and `min.insync.replicas` 2; none may end by itself."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv (util-linux)")
    found = Cluster(Odradek(), Loopback(), tmp_path / "nodes", FASTER)
    found.prepare()
    try:
        found.start_all()
        yield found
        assert not found.unexpected_ends()
    finally:
        found.close()
