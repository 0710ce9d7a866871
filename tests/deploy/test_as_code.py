"""Topics and quotas that an inventory declares. Mistakes give sentences, and a second run changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import pytest

from tests.cli.running import odradek_here
from tests.deploy.plugins import plugin
from tests.node_process import RunningNode


class Ended(Exception):
    """Raised when a module ends; its argument is the module's result."""


class Called:
    """A stand-in for AnsibleModule whose commands run in this process."""

    def __init__(self, *, check_mode: bool = False, **params: Any) -> None:
        self.params = params
        self.check_mode = check_mode
        self.commands: list[list[str]] = []

    def __call__(self, *, argument_spec: dict[str, Any], supports_check_mode: bool) -> Called:
        defaults = {name: spec.get("default") for name, spec in argument_spec.items()}
        self.params = {**defaults, **self.params}
        return self

    def run_command(self, command: list[str], data: str | None = None) -> tuple[int, str, str]:
        self.commands.append(command[1:3])
        done = odradek_here(*command[1:], stdin=(data or "").encode())
        return done.code, done.out, done.err

    def exit_json(self, **result: Any) -> NoReturn:
        raise Ended(result)

    def fail_json(self, **result: Any) -> NoReturn:
        raise Ended({"failed": True, **result})


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "topics", monkeypatch)


@pytest.fixture
def quotas(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "quotas", monkeypatch)


def run(module: ModuleType, called: Called, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a module and return its result."""
    monkeypatch.setattr(module, "AnsibleModule", called)
    with pytest.raises(Ended) as ended:
        module.main()
    result: dict[str, Any] = ended.value.args[0]
    return result


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ({"partitions": 3}, "Entry 1 of odradek_topics needs a name"),
        ({"name": "a b"}, "Topic a b needs a name of at most 249 letters"),
        ({"name": ".."}, "needs a name"),
        ({"name": "__consumer_offsets"}, "is an internal topic"),
        ({"name": "t", "partition": 3}, "Topic t has no key partition: did you mean partitions?"),
        ({"name": "t", "partitions": 0}, "Topic t: partitions is 0, and must be a whole number from 1"),
        ({"name": "t", "partitions": True}, "partitions is True"),
        ({"name": "t", "replication_factor": "three"}, "replication_factor is 'three'"),
        ({"name": "t", "replication_factor": 40000}, "from 1 to 32767"),
        ({"name": "t", "state": "gone"}, "state is 'gone', and must be present or absent"),
        ({"name": "t", "configs": ["a=b"]}, "configs must be a dictionary"),
        (
            {"name": "t", "configs": {"retention.ms": [1]}},
            "retention.ms is [1], and must be a number or a text",
        ),
        (
            {"name": "t", "replication_factor": 1, "configs": {"min.insync.replicas": 2}},
            "acks=all would always be refused",
        ),
    ],
)
def test_mistakes_in_a_topic(topics: ModuleType, topic: dict[str, Any], problem: str) -> None:
    """Each mistake in an entry gives a sentence that names the entry and the key."""
    (found,) = topics.problems_of([topic])
    assert problem in found


def test_mistakes_between_topics(topics: ModuleType) -> None:
    """All mistakes are found at once, such as a duplicate name and two names that metrics cannot tell apart."""
    found = topics.problems_of(
        [{"name": "a.b"}, {"name": "a_b"}, {"name": "c"}, {"name": "c", "partitions": -1}]
    )
    assert len(found) == 3
    assert "Topic c is there 2 times" in " ".join(found)
    assert "Topics a.b and a_b differ by dots and underscores" in " ".join(found)


@pytest.mark.parametrize(
    ("key", "before", "after", "loses"),
    [
        ("retention.ms", "1000", "999", True),
        ("retention.ms", "1000", "1001", False),
        ("retention.ms", "1000", "-1", False),
        ("retention.ms", "-1", "1000", True),
        ("retention.bytes", "-1", "1000", True),
        ("retention.ms", "1000", None, True),
        ("retention.ms", "1000", "soon", False),
        ("cleanup.policy", "compact", "delete", True),
        ("cleanup.policy", "delete", "compact,delete", True),
        ("cleanup.policy", "compact,delete", "compact", False),
        ("max.message.bytes", "1000", "10", False),
    ],
)
def test_what_loses_records(
    topics: ModuleType, key: str, before: str, after: str | None, loses: bool
) -> None:
    """A lower retention or another cleanup policy may remove records. A higher retention and other keys do not."""
    assert (topics.loss_of(key, before, after) is not None) is loses


def test_topics_on_a_node(
    topics: ModuleType, node: RunningNode, fresh_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are created, enlarged, changed and deleted as the inventory says. Checks and second runs change
    nothing."""
    name = fresh_topic("code")
    entry: dict[str, Any] = {
        "name": name,
        "partitions": 2,
        "configs": {"retention.ms": 100000, "preallocate": False},
    }

    def apply(*, check: bool = False, **more: Any) -> dict[str, Any]:
        called = Called(topics=[entry], bootstrap=node.bootstrap, check_mode=check, odradek="odradek", **more)
        return run(topics, called, monkeypatch)

    def there() -> dict[str, Any] | None:
        listed = odradek_here("topic", "list", "--json", bootstrap=node.bootstrap).json()["topics"]
        if name not in {each["topic"] for each in listed}:
            return None
        (found,) = odradek_here("topic", "describe", name, "--json", bootstrap=node.bootstrap).json()[
            "topics"
        ]
        return {"partitions": len(found["partitions"]), **found["configs"]}

    planned = apply(check=True)
    assert planned["done"] == [f"topic {name} created: 2 partitions, retention.ms=100000, preallocate=false"]
    assert there() is None
    assert apply()["changed"]
    assert there() == {"partitions": 2, "retention.ms": "100000", "preallocate": "false"}
    assert not apply()["changed"]
    entry["partitions"] = 3
    entry["configs"] = {"retention.ms": 200000, "preallocate": None}
    assert apply()["done"] == [
        f"topic {name} changed: retention.ms: 100000 -> 200000, preallocate: false -> default",
        f"topic {name} changed: partitions: 2 -> 3",
    ]
    assert there() == {"partitions": 3, "retention.ms": "200000"}
    assert not apply()["changed"]
    # A plan that would lose partitions or records is refused as a whole.
    entry["partitions"] = 1
    assert "Partitions are never taken away: write 3" in apply()["msg"]
    entry |= {"partitions": 4, "configs": {"retention.ms": 5}}
    refused = apply()
    assert "retention.ms goes from 200000 to 5" in refused["msg"]
    assert f"-e odradek_topics_loss={name}" in refused["msg"]
    assert there() == {"partitions": 3, "retention.ms": "200000"}
    assert apply(loss=[name])["changed"]
    # The cluster checks the whole plan before the first change.
    entry |= {"partitions": 5, "configs": {"retention.mss": 5}}
    assert "retention.mss" in apply()["msg"]
    entry |= {"configs": {}, "replication_factor": 3}
    assert "refused" in apply()["msg"]
    assert there() == {"partitions": 4, "retention.ms": "5"}
    entry["state"] = "absent"
    assert "would be gone with all its records" in apply(loss=["other"])["msg"]
    assert apply(loss=[name])["done"] == [f"topic {name} deleted"]
    assert there() is None
    assert not apply()["changed"]


@pytest.mark.parametrize(
    ("quota", "problem"),
    [
        ({"produce_rate": 1}, "Entry 1 of odradek_quotas needs a user, a client_id, both, or an ip"),
        ({"user": "u"}, "The quota of user u has no limit: give one of produce_rate"),
        ({"user": "u", "producer_rate": 1}, "has no key producer_rate: did you mean produce_rate?"),
        ({"user": "u", "ip": "192.0.2.1", "connection_rate": 1}, "ip cannot be combined"),
        ({"user": "u", "connection_rate": 1}, "only an ip has one"),
        ({"ip": "192.0.2.1", "produce_rate": 1}, "an ip has a connection_rate and nothing else"),
        ({"user": "u", "produce_rate": 1, "state": "off"}, "state is 'off'"),
    ],
)
def test_mistakes_in_a_quota(quotas: ModuleType, quota: dict[str, Any], problem: str) -> None:
    """Each mistake in an entry gives a sentence that names the entry."""
    assert problem in " ".join(quotas.problems_of([quota]))


def test_quotas_on_a_node(quotas: ModuleType, node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotas are set, changed and removed as the inventory says. A second run changes nothing."""
    entries: list[dict[str, Any]] = [
        {"user": "code", "client_id": "<default>", "produce_rate": "10M", "request_percentage": 50},
        {"ip": "192.0.2.77", "connection_rate": 5},
    ]

    def apply(*, check: bool = False) -> dict[str, Any]:
        called = Called(quotas=entries, bootstrap=node.bootstrap, check_mode=check, odradek="odradek")
        return run(quotas, called, monkeypatch)

    def there() -> dict[str, Any]:
        listed = odradek_here("quota", "list", "--json", bootstrap=node.bootstrap).json()["quotas"]
        ours = [each for each in listed if {"code", "192.0.2.77"} & set(each["entity"].values())]
        return {json.dumps(each["entity"], sort_keys=True): each["quotas"] for each in ours}

    assert apply(check=True)["done"] == [
        "quotas of user code client-id <default> set: produce_rate: none -> 10485760, request_percentage: none -> 50",
        "quotas of ip 192.0.2.77 set: connection_rate: none -> 5",
    ]
    assert there() == {}
    assert apply()["changed"]
    assert not apply()["changed"]
    entries[0] |= {"produce_rate": "20M", "request_percentage": None}
    entries[1] = {"ip": "192.0.2.77", "state": "absent"}
    assert apply()["done"] == [
        "quotas of user code client-id <default> set: produce_rate: 10485760 -> 20971520",
        "quotas of user code client-id <default> removed: request_percentage",
        "quotas of ip 192.0.2.77 removed: connection_creation_rate",
    ]
    assert list(there().values()) == [{"producer_byte_rate": 20971520.0}]
    assert not apply()["changed"]
    # A single mistake stops all changes of the run.
    entries[0]["produce_rate"] = "lots"
    entries[1] = {"ip": "192.0.2.77", "connection_rate": 7}
    assert "'lots' is not a number of bytes" in apply()["msg"]
    assert len(there()) == 1
    entries[:] = [{"user": "code", "client_id": "<default>", "state": "absent"}]
    assert apply()["changed"]
    assert there() == {}


def test_a_command_that_fails_is_a_sentence(topics: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cluster does not answer, the module fails with the last line of the command."""
    called = Called(topics=[], bootstrap="127.0.0.1:1", odradek="odradek")
    monkeypatch.setattr(
        called, "run_command", lambda command, data=None: (1, "", "odradek: no broker answers\n")
    )
    assert run(topics, called, monkeypatch)["msg"] == "odradek topic list failed: no broker answers"
