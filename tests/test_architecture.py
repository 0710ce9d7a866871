"""The colours of modules and the direction of their imports.

PURE modules decide, and can neither wait nor do IO. PORTED modules await ports. SHELL modules do IO and decide nothing.
Only modules that are listed here as SHELL may use what `tests.colours` finds.
"""

from __future__ import annotations

import ast
import logging
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from tests.colours import Finding, findings, is_async
from tests.structure import circles, dotted_name, imports, tree_of

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ("wire", "metadata_quorum", "data_plane", "odradek", "spark", "pyspark_odradek")
PACKAGES = (*INSTALLED, "sim")

SHELL = {
    "odradek/cli/": "a process of its own: arguments, files, signals",
    "odradek/client/shells/admin_client.py": "the blocking shell's thread, for administration",
    "odradek/client/shells/blocking.py": "the blocking shell: a core in the caller's thread",
    "odradek/client/shells/consumer.py": "the blocking consumer: the clock, calls of the application's thread",
    "odradek/client/shells/io_thread.py": "the blocking shell: a core in a thread of its own",
    "odradek/client/shells/leaving.py": "clients that nobody closed: the end of the process, forks, dropped objects",
    "odradek/client/shells/record_future.py": "futures that several threads wait for",
    "odradek/client/shells/producer.py": "the blocking producer: calls and futures of several threads",
    "odradek/client/shells/sockets.py": "the sockets and the selector of the blocking shells",
    "odradek/console/__main__.py": "a process of its own: arguments, descriptors",
    "odradek/console/http/page_files.py": "the files of the pages, read once",
    "odradek/console/process.py": "opens the nursery of the console; signals",
    "odradek/console/decoding/decoders.py": "threads that want the same compiled schema",
    "odradek/console/decoding/protobuf_schema.py": "the compiler's process, and the files that it reads",
    "odradek/console/decoding/registry.py": "sockets to the schema registry",
    "odradek/console/decoding/schema_files.py": "the file with schemas of topics, read once",
    "odradek/console/reading/": "searches with the blocking client, in a thread, against a clock",
    "odradek/console/sessions/audit_authors.py": "files of audit logs; threads of views",
    "odradek/console/sessions/beside.py": "a thread beside those of views; the clock of ages",
    "odradek/console/sessions/history.py": "follows the metadata log with the blocking client; threads of views",
    "odradek/console/sessions/kept_values.py": "threads of views that want the same value",
    "odradek/console/sessions/lag_history.py": "threads of views; the clock of trends",
    "odradek/console/sessions/samples.py": "threads of views that want the same sample; the clock of rates",
    "odradek/console/sessions/shared_parts.py": "the names of files in the console's settings",
    "odradek/console/sessions/token_maker.py": "the console's own user as a blocking client, for several threads",
    "odradek/console/streams/thread_stream.py": "the threads of views, and the loop that sends what they write",
    "odradek/console/views/": "views run in threads with the blocking client; ages and rates need a clock",
    "odradek/env/bounded_calls.py": "the thread that calls a disk for the loop",
    "odradek/env/child_python.py": "the command and the environment of a child process, and its end",
    "odradek/env/companion.py": "a companion's process, as its node sees it",
    "odradek/env/companion_frames.py": "what passes between a node and its companion: sockets, memory",
    "odradek/env/companion_main.py": "a companion's process: signals, lent descriptors",
    "odradek/env/documents.py": "a document at an address that a setting names",
    "odradek/env/low_priority.py": "a companion's place among the processes that want the processor",
    "odradek/env/real.py": "the ports of this machine",
    "odradek/env/real_descriptors.py": "the ports of this machine",
    "odradek/env/real_dirs.py": "the ports of this machine",
    "odradek/env/real_files.py": "the ports of this machine",
    "odradek/env/real_net.py": "the ports of this machine",
    "odradek/env/real_tls.py": "TLS of this machine: OpenSSL",
    "odradek/env/tls_stores.py": "files of keys and certificates",
    "odradek/env/tokens.py": "tokens by which this end logs in: files, servers, the wall clock",
    "odradek/node/garbage.py": "the process' collector of garbage",
    "odradek/node/main.py": "a node as a process: signals, exit status",
    "odradek/node/run_node.py": "opens the nursery of a node",
    "odradek/node/secret_files.py": "who may read the files that have a node's secrets",
    "odradek/node/supervision/console_door.py": "the process of the console, which only a real node has",
    "odradek/node/supervision/service_manager.py": "a socket of systemd, which only a real process has",
    "odradek/node/supervision/signals.py": "a thread that waits for signals, and may end the process",
    "odradek/operations/event_reader.py": "follows the metadata log with the blocking client, for a command",
    "odradek/version.py": "the files of this installation, and git",
    "odradek/trio.py": "opens the nurseries of the clients of trio programs",
    "pyspark_odradek/__init__.py": "which Python and host lack the package, for an error; a variable of its environment",
    "sim/__main__.py": "a process of its own: arguments, real time",
    "sim/run.py": "how long a run took in real time, where an unexpected exception came from",
    "sim/campaign/census.py": "a command of its own: arguments, the files of a campaign",
    "sim/campaign/command.py": "a process of its own: arguments, files, real time",
    "sim/campaign/coverage.py": "follows the lines that a run executes; the worker of a campaign, no node",
    "sim/campaign/guide.py": "the campaign's own file of coverage",
    "sim/campaign/observing.py": "a failing run once more, from the command line",
    "sim/campaign/worker.py": "a process of its own: files, standard input",
    "sim/campaign/workers.py": "processes that run seeds side by side",
    "sim/knobs/turning.py": "replaces constants of loaded modules, and reads their imports",
    "sim/machine/clock.py": "trio's clock in the virtual world",
    "sim/machine/task_loop.py": "the loop that runs the tasks of a virtual world",
    "sim/machine/waiting.py": "waits in the virtual world",
    "sim/machine/world.py": "the run of a virtual world",
    "spark/__main__.py": "a process of its own: arguments, and whether this is a checkout",
    "spark/reading/cluster_view.py": "pauses between attempts of the driver's questions",
    "spark/reading/fetching.py": "an executor's connections, how long nothing has come",
    "spark/pipelines/": "jobs: files, arguments, progress",
    "spark/pyspark_archive.py": "writes an archive of the installed pyspark anew, when a user asks",
    "spark/options_page.py": "prints a page of docs/",
    "spark/plain_errors.py": "which process this is, and a variable of its environment",
    "spark/quiet.py": "prints where settings of Spark's logs are",
    "spark/delivery/decisions.py": "connections of driver and executors to the decisions topic, pauses between attempts",
    "spark/delivery/batch_driver.py": "waits for the outcome of transactions",
    "spark/delivery/kept_clients.py": "which process it is, so that a forked one makes its own clients",
    "spark/delivery/connecting.py": "a variable of its environment",
    "spark/delivery/finish.py": "a command: arguments, the files of a checkpoint",
    "spark/delivery/undecided.py": "a command: arguments, how long ago something began",
    "spark/writing/transactional_task.py": "how long an attempt's transaction is open",
    "spark/sink.py": "an executor's producer, files of metrics, names of jobs",
    "spark/writing/sink_task.py": "the clock of records, where rows without a key begin",
    "spark/source_stream.py": "the clock of triggers and lag, names of groups",
    "spark/worker_process.py": "which process this is, and its collector of garbage",
    "wire/schema/": "writes wire/messages, when a developer asks",
}
ALLOWED = {
    (
        "data_plane/log/directory/log_loader.py",
        "import threading",
    ): "a lock: the workers of several disks take turns",
    (
        "data_plane/log/directory/offset_checkpoints.py",
        "import threading",
    ): "a lock: workers write small files beside the loop",
    (
        "data_plane/log/segments/segment.py",
        "import threading",
    ): "a lock: a disk's thread takes segments away beside the loop",
    (
        "data_plane/log/segments/walked_times.py",
        "import threading",
    ): "a lock: workers for look-ups, retention and the cleaner walk over one segment",
    ("odradek/console/http/http_server.py", "import http"): "names of statuses",
    ("odradek/console/http/messages.py", "import urllib.parse"): "addresses are texts",
    ("odradek/console/stream_responses.py", "import urllib.parse"): "addresses are texts",
    (
        "odradek/node/configuration/node_config.py",
        "open() passes the ports by",
    ): "the configuration is read before there is an Env",
    ("wire/batches/compression.py", "import io"): "BytesIO is memory",
    ("wire/batches/compression.py", "import threading"): "a decompressor per thread",
}
"""The exceptions for single modules, each with its reason."""


def modules(packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """Return all modules of the product, relative to the root of the repository."""
    return sorted(str(path.relative_to(ROOT)) for name in packages for path in (ROOT / name).rglob("*.py"))


def is_shell(module: str) -> bool:
    """True if the module is listed as SHELL."""
    return any(module == entry or (entry.endswith("/") and module.startswith(entry)) for entry in SHELL)


def test_only_shell_touches_the_world() -> None:
    """PURE and PORTED modules use no trio, clocks, files, sockets, threads, global random, id(), hash() or order of
    sets."""
    broken = [
        f"{module}:{finding.line}: {finding.rule}"
        for module in modules()
        if not is_shell(module)
        for finding in findings(tree_of(module))
        if (module, finding.rule) not in ALLOWED
    ]
    assert broken == []


def test_the_wire_is_pure() -> None:
    """Modules of `wire/` convert between bytes and values, and never wait."""
    assert [module for module in modules() if module.startswith("wire/") and is_async(tree_of(module))] == []


def test_no_licence_outlives_its_need() -> None:
    """The lists name only modules that exist and still need the exception."""
    for entry in SHELL:
        covered = [module for module in modules() if module == entry or module.startswith(entry)]
        assert any(findings(tree_of(module)) for module in covered), f"{entry} needs no licence"
    for module, rule in ALLOWED:
        assert rule in {finding.rule for finding in findings(tree_of(module))}, f"{module} does not {rule}"


def test_every_package_is_installed() -> None:
    """Every package is in `pyproject.toml`. Otherwise it would work in a checkout and be missing in an installation."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(named) == sorted({dotted_name(str(Path(module).parent)) for module in modules(INSTALLED)})


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import trio", "import trio"),
        ("from os import path", "import os"),
        ("import concurrent.futures", "import concurrent.futures"),
        ("import random\nrandom.random()", "of random only the type Random"),
        ("from random import shuffle", "of random only the type Random"),
        ("x = id(1)", "id() differs from process to process"),
        ("x = {hash(v): v for v in ()}", "hash() differs from process to process"),
        ("open('f')", "open() passes the ports by"),
        ("import datetime\nfrom datetime import datetime\ndatetime.now()", "the clock is a port"),
        ("for x in {1, 2}: pass", "set"),
        ("x = [y for y in set(z)]", "set"),
        ("x = list(frozenset(z))", "set"),
        ("x = ','.join({1})", "set"),
        ("def f(brokers: set[int]):\n  for b in brokers: pass", "set"),
        ("def f():\n  s = set()\n  return [*s]", "set"),
        ("def f(a: set[int], b):\n  return tuple(a - b)", "set"),
        (
            "class A:\n  def __init__(self): self.s: set[int] = set()\n  def f(self): return next(iter(self.s))",
            "set",
        ),
        ("class A:\n  s: set[int]\n  def f(self):\n    for x in self.s: pass", "set"),
        ("def f(s: set[int]): return s.pop()", "set"),
    ],
)
def test_each_rule_finds_its_sin(source: str, rule: str) -> None:
    """Each rule finds an example that breaks it, since a broken rule would make any code look clean."""
    assert any(rule in finding.rule for finding in findings(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import random\nx: random.Random = random.Random(1)",
        "from random import Random",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import trio",
        "for x in sorted({1, 2}): pass",
        "x = 1 in {1, 2}",
        "def f(s: set[int]): return sorted(x for x in s)",
        "def f(s: set[int]): return any(x > 1 for x in s)",
        "def f(s: set[int]): return {x + 1 for x in s}",
        "def f(s: dict[int, int]):\n  for x in s: pass",
        "def f(s: list[int]): return s.pop()",
        "def f(s: set[int]): return {*s, 1}",
    ],
)
def test_what_is_allowed_is_not_found(source: str) -> None:
    """Allowed uses are not reported: membership tests and sorting of sets, and names of types."""
    assert findings(ast.parse(source)) == list[Finding]()


def test_two_names_are_installed() -> None:
    """The installation adds two top-level names, so only a user's module of such a name could clash."""
    assert top_names() == ["odradek", "pyspark_odradek"]


def top_names() -> list[str]:
    """Return the top-level names that the installation adds."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    return sorted({name.partition(".")[0] for name in named})


def layers() -> list[str]:
    """Return the layers, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [layer for each in contracts if each.get("containers") == ["odradek"] for layer in each["layers"]]


def test_imports_run_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    """Imports keep to the layers and to the other contracts in pyproject.toml."""
    try:
        status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    finally:
        # import-linter disables all loggers of its process. Later tests need their warnings.
        for logger in map(logging.getLogger, list(logging.root.manager.loggerDict)):
            logger.disabled = False
    assert status == 0, capsys.readouterr().out


def main() -> None:
    """Print the installed names, the layers and the circles of files, as `python -m tests.test_architecture` does."""
    print("installed:", *top_names())
    print("layers:", *layers(), sep="\n  ")
    rings = circles(imports())
    print(f"{len(rings)} circles of files", *(" ".join(ring) for ring in rings), sep="\n  ")


if __name__ == "__main__":
    main()
