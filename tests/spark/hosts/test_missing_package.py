"""A Python without the package raises one sentence for whatever Spark has pickled for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_odradek import DefaultSource
from tests.docs.markdown import ROOT
from tests.node_process import RunningNode
from tests.spark.hosts.test_hosts import SENTENCE
from tests.spark.topics import Topics

VALUE = StructType([StructField("value", BinaryType())])
LOAD = """
import os, sys
lacks = sys.argv[1]
if lacks == "odradek":
    sys.path = [each for each in sys.path if not os.path.exists(os.path.join(each, lacks))]
else:
    sys.modules[lacks] = None
from pyspark import cloudpickle
made = cloudpickle.load(sys.stdin.buffer)
if isinstance(made, type):
    made({"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}).schema()
print(type(made).__name__)
"""
"""Unpickle as a Python that lacks the named module, and use a class. (Both packages lie in one folder.)"""
MADE = {
    "reader": lambda source: source.reader(source.schema()),
    "streamReader": lambda source: source.streamReader(source.schema()),
    "writer": lambda source: source.writer(VALUE, False),
    "streamWriter": lambda source: source.streamWriter(VALUE, False),
    "class": type,
}


def load(pickled: bytes, lacks: str) -> subprocess.CompletedProcess[bytes]:
    """Run a process that lacks this module, and lets Spark unpickle the bytes."""
    words = [sys.executable, "-c", LOAD, lacks]
    return subprocess.run(words, input=pickled, cwd=ROOT, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("what", MADE)
def test_what_spark_pickles(node: RunningNode, fresh_topic: Callable[[str], str], what: str) -> None:
    """Readers, writers and the class are unpickled without the module of the format's name. Without the code, the error
    is a sentence that names the Python."""
    topic = Topics(node.bootstrap).create(fresh_topic("pickled"))
    made = MADE[what](
        DefaultSource({"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "topic": topic})
    )
    pickled = cloudpickle.dumps(made)
    done = load(pickled, "pyspark_odradek")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == type(made).__name__
    done = load(pickled, "odradek")
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith(f"ImportError: the Python {sys.executable} on the host ")
    assert last.endswith(SENTENCE)


def test_another_version() -> None:
    """Where a module of ours alone is missing, the sentence asks for the driver's version."""
    source = DefaultSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    pickled = cloudpickle.dumps(source.reader(source.schema()))
    done = load(pickled, "odradek.spark.source_options")
    last = done.stderr.decode().splitlines()[-1]
    assert last.endswith(
        "lacks the module 'odradek.spark.source_options': install the driver's version of the package odradek there"
    )


def test_an_older_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.1 and older are refused by one sentence: they lack what a stream needs."""
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(
        ImportError, match=r"^the format odradek needs PySpark 4\.2 or newer, and this is 4\.1\.4$"
    ):
        DefaultSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}).schema()
