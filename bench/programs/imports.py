"""Measures what a Python client installs and imports, compared with kafka-python, aiokafka and confluent-kafka.

    python -m bench.programs.imports [--passes N]

Each program imports the classes of a producer and a consumer and ends. The figures are its modules, its CPU time and
its peak memory, each without those of an empty program. CPU time is user and system time, the least of all passes.
The size counts a project and all that it requires, from the metadata of this environment, without bytecode.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from subprocess import PIPE, Popen

from attrs import frozen

from bench.instruments.tables import table
from odradek.client.shells import producer

__all__ = ["Cost", "cost_of", "installed"]

PASSES = 15
EMPTY = "pass"
CLIENTS = {
    "Odradek": ("odradek", "from odradek import Consumer, Producer"),
    "Odradek, producer alone": ("odradek", "from odradek import Producer"),
    "kafka-python": ("kafka-python", "from kafka import KafkaConsumer, KafkaProducer"),
    "aiokafka": ("aiokafka", "from aiokafka import AIOKafkaConsumer, AIOKafkaProducer"),
    "confluent-kafka": ("confluent-kafka", "from confluent_kafka import Consumer, Producer"),
}
CLIENT_PROJECTS = ("attrs", "cramjam", "crc32c", "lz4", "zstandard")
"""The projects that our client imports. (The package requires more projects, for nodes.)"""
_REPORT = """
import sys
modules = len(sys.modules)
with open("/proc/self/status") as status:
    print(modules, next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


@frozen
class Cost:
    """The cost of a program: loaded modules, CPU seconds (user and system), and peak memory in bytes."""

    modules: int
    cpu_seconds: float
    memory_bytes: int


def cost_of(program: str, passes: int = PASSES) -> Cost:
    """Return the least cost of `passes` runs of a program in a Python of this environment. Raises `ChildProcessError`
    if it fails.
    """
    found = [_run(program) for _ in range(passes)]
    return Cost(
        found[0].modules, min(each.cpu_seconds for each in found), min(each.memory_bytes for each in found)
    )


def _run(program: str) -> Cost:
    with Popen([sys.executable, "-c", program + _REPORT], stdout=PIPE) as child:
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise ChildProcessError(f"{program!r} ended with {child.returncode}")
    # wait4 also returns a peak of memory, but that peak includes this process, from before the child ran its program.
    modules, kilobytes = map(int, said.split())
    return Cost(modules, used.ru_utime + used.ru_stime, kilobytes * 1024)


def installed(projects: Iterable[str]) -> tuple[int, int]:
    """Count these projects and all projects that they require. Return their number, and the bytes of their files
    without bytecode. Extras are left out.
    """
    left, found = list(projects), dict[str, int]()
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            about = distribution(name)
        except PackageNotFoundError:
            continue  # needed only for another Python or platform
        found[name] = sum(
            Path(str(each.locate())).stat().st_size for each in about.files or () if _counts(each.suffix)
        )
        wanted = [each for each in about.requires or () if "extra ==" not in each]
        left += [re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] for each in wanted]
    if "odradek" in found:
        found["odradek"] = _own_bytes()
    return len(found), sum(found.values())


def _counts(suffix: str) -> bool:
    return suffix != ".pyc"


def _own_bytes() -> int:
    """Return the bytes of our own modules. The metadata cannot be used, because it does not list them if a checkout is
    installed.
    """
    root = Path(producer.__file__).parents[2]
    folders = os.walk(root, followlinks=True)
    paths = (Path(folder, name) for folder, _, names in folders for name in names)
    return sum(path.stat().st_size for path in paths if path.suffix == ".py" and "tests" not in path.parts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--passes", type=int, default=PASSES, help="runs of each program (default %(default)s)"
    )
    passes: int = parser.parse_args().passes
    empty = cost_of(EMPTY, passes)
    rows = []
    for client, (project, program) in CLIENTS.items():
        count, size = installed([project])
        cost = cost_of(program, passes)
        rows.append(
            [
                client,
                str(count),
                f"{size / 1e6:.1f} MB",
                str(cost.modules - empty.modules),
                f"{(cost.cpu_seconds - empty.cpu_seconds) * 1e3:.0f} ms",
                f"{(cost.memory_bytes - empty.memory_bytes) / 2**20:.1f} MiB",
            ]
        )
    print(table(["client", "projects", "installed", "modules", "CPU", "memory"], rows))
    count, size = installed(CLIENT_PROJECTS)
    print(
        f"Of these, our client imports {count} projects of {size / 1e6:.1f} MB, and our own {_own_bytes() / 1e6:.1f} MB."
    )
    print(
        f"An empty program: {empty.modules} modules, {empty.cpu_seconds * 1e3:.0f} ms, {empty.memory_bytes / 2**20:.1f} MiB."
    )


if __name__ == "__main__":
    main()
