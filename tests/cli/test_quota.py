"""`odradek quota` against our own node, with all commands of docs/quotas.md."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator

import pytest

from odradek import Producer
from odradek.cli.__main__ import main
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess, free_ports
from tests.cli.running import Outcome, words_of
from tests.docs.markdown import blocks

Run = Callable[..., Outcome]
STRANGE = 'a "strange\\" client'
METRICS = "http://127.0.0.1:{}/metrics"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A node with its metrics enabled, and the address of the metrics page."""
    (port,) = free_ports(1)
    settings = {"odradek.metrics.listener": f"127.0.0.1:{port}"}
    server = start_odradek(tmp_path_factory.mktemp("limited"), settings=settings)
    try:
        yield server, METRICS.format(port)
    finally:
        server.stop()


@pytest.fixture
def run(
    limited: tuple[ServerProcess, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run a command against the node, in this process."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", limited[0].bootstrap)
    return lambda *words: Outcome(main(words), *capsys.readouterr())


def listed(run: Run, *words: str) -> dict[str, dict[str, float]]:
    """Return the quotas that `quota list` shows, by the text of their entity."""
    document = run("quota", "list", *words, "--json").json()
    return {
        ", ".join(f"{kind}={name}" for kind, name in each["entity"].items()): each["quotas"]
        for each in document["quotas"]
    }


def test_the_page_can_be_walked(run: Run, limited: tuple[ServerProcess, str]) -> None:
    """Each command of docs/quotas.md gives the result that the page describes."""
    commands = [line for block in blocks("docs/quotas.md", "sh") for line in block.code.splitlines()]
    assert {shlex.split(each)[2] for each in commands} == {"list", "set", "remove", "explain"}
    for command in commands:
        words = [word.replace("http://127.0.0.1:9592/metrics", limited[1]) for word in shlex.split(command)]
        done = run(*words[1:])
        assert (done.code, done.err) == (0, ""), command
        if words[2] == "explain":
            _, produce, fetch, percentage, mutation = words_of(done.out)[:5]
            assert produce[:6] == ["produce-rate", "10,000,000", "B/s", "3", "of", "8"]
            assert fetch[:3] == ["fetch-rate", "20,000,000", "B/s"]
            assert percentage[:6] == ["request-percentage", "25", "%", "8", "of", "8"]
            assert mutation[:2] == ["mutation-rate", "-"]
    assert listed(run) == {"client-id=<default>": {"request_percentage": 25.0}}
    assert run("quota", "remove", "--client-id", "<default>").out.endswith("1 quota removed\n")
    assert listed(run) == {}


def test_an_endless_quota_is_listed(run: Run) -> None:
    """An infinite quota can be set and is listed: Kafka allows infinity for quotas that are not integers."""
    endless = run("quota", "set", "--client-id", "endless", "--mutation-rate", "inf")
    assert (endless.code, endless.err) == (0, "")
    shown = run("quota", "list")
    assert (shown.code, shown.err) == (0, "")
    assert " inf " in shown.out
    assert run("quota", "remove", "--client-id", "endless").code == 0
    assert listed(run) == {}


def test_what_is_set_is_listed_and_goes(run: Run) -> None:
    """`set` and `remove` change only the quotas that they name. A dry run changes nothing."""
    both = ("--user", "ann", "--client-id", STRANGE)
    assert (
        run("quota", "set", *both, "--produce-rate", "1000", "--mutation-rate", "0.5", "--dry-run").code == 0
    )
    assert listed(run) == {}
    assert run("quota", "set", *both, "--produce-rate", "1000", "--mutation-rate", "0.5").code == 0
    assert run("quota", "set", "--ip", "<default>", "--connection-rate", "5000").code == 0
    entity = f"client-id={STRANGE}, user=ann"
    values = {"controller_mutation_rate": 0.5, "producer_byte_rate": 1000.0}
    assert listed(run, "--user", "ann") == {entity: values}
    assert listed(run)["ip=<default>"] == {"connection_creation_rate": 5000.0}
    assert run("quota", "remove", *both, "--mutation-rate", "--dry-run").code == 0
    assert listed(run, "--user", "ann") == {entity: values}
    assert run("quota", "remove", *both, "--mutation-rate").code == 0
    assert listed(run, "--user", "ann") == {entity: {"producer_byte_rate": 1000.0}}
    for left in (both, ("--ip", "<default>")):
        assert run("quota", "remove", *left).code == 0
    assert run("quota", "remove", *both).out.endswith("0 quotas removed\n")
    assert listed(run) == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "--user", "ann", "--connection-rate", "5"), "Invalid configuration key"),
        (("set", "--ip", "no-address", "--connection-rate", "5"), "is not a valid IP or resolvable host"),
        (("explain", "--metrics", "http://127.0.0.1:1/metrics"), "refused"),
    ],
)
def test_a_refusal_is_one_line(run: Run, words: tuple[str, ...], told: str) -> None:
    """A refusal is one line with the reason given by the controller or by the operating system."""
    assert told in run("quota", *words).refusal()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "--produce-rate", "5"), "give --user, --client-id (or both), or --ip"),
        (("set", "--user", "ann"), "give at least one quota: --produce-rate, "),
        (("set", "--user", "ann", "--produce-rate", "10X"), "'10X' is not a number of bytes"),
        (("set", "--user", "ann", "--produce-rate", "0"), "'0' is not a number of bytes above 0"),
        (("set", "--user", "ann", "--fetch-rate", "nan"), "'nan' is not a number of bytes above 0"),
        (("set", "--user", "ann", "--fetch-rate", "1e30"), "'1e30' is not a number of bytes above 0"),
        (("set", "--user", "ann", "--mutation-rate", "fast"), "'fast' is not a number"),
        (("set", "--user", "ann", "--mutation-rate", "nan"), "'nan' is not a number"),
        (("set", "--user", "ann", "--request-percentage", "-1"), "'-1' is not a number above 0"),
        (("set", "--user", "ann", "--ip", "10.0.0.1", "--connection-rate", "5"), "--ip cannot be combined"),
        (("explain", "--metrics", "localhost:9404"), "expected http://HOST:PORT/metrics"),
    ],
)
def test_wrong_words_are_told(run: Run, words: tuple[str, ...], told: str) -> None:
    """An invalid combination of options or values ends with status 2."""
    done = run("quota", *words)
    assert done.code == 2
    assert told in done.err


def test_what_a_client_uses_now_is_shown(
    run: Run, limited: tuple[ServerProcess, str], fresh_topic: Callable[[str], str]
) -> None:
    """`explain --metrics` shows the current use of a client, even if its id needs escaping."""
    server, metrics = limited
    topic, stop = fresh_topic("limited"), threading.Event()
    assert run("topic", "create", topic, "--partitions", "1").code == 0
    entity = ("--client-id", STRANGE)
    assert run("quota", "set", *entity, "--produce-rate", "100000").code == 0
    listed(run)

    def work() -> None:
        with Producer(bootstrap_servers=server.bootstrap, client_id=STRANGE, acks="all") as producer:
            while not stop.is_set():
                producer.send(topic, value=bytes(1000)).result(20.0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        used = None
        while not used:
            (produce, *_) = run("quota", "explain", *entity, "--metrics", metrics, "--json").json()["quotas"]
            used = (produce["used"] or {}).get("per_second")
        row = words_of(run("quota", "explain", *entity, "--metrics", metrics).out)[1]
    finally:
        stop.set()
        thread.join()
        run("quota", "remove", *entity)
    assert row[:6] == ["produce-rate", "100,000", "B/s", "7", "of", "8"]
    number, *rest = row[-6:]
    assert float(number.replace(",", "")) > 0
    assert (rest[0], rest[2:]) == ("B/s", ["s", "in", "all"])
