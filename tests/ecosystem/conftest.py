"""Three real nodes for third-party programs."""

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
    """Start three nodes with replication factor 3 and `min.insync.replicas` 2. Fail if one ends by itself."""
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
