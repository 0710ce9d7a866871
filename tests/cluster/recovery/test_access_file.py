"""The file of users, rights and quotas for `metadata rebuild --access`, and the file of `--topics` beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from odradek.cli.failure import CliError
from odradek.cli.recovering.access_file import access_records
from odradek.cli.recovering.given_files import topic_configs_in
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.recovery.choice import Named, rebuild
from odradek.metadata_quorum.recovery.evidence import evidence, review
from odradek.security.scram import MECHANISMS, server_keys
from odradek.wire.messages.metadata_records import UserScramCredentialRecord
from odradek.wire.structure import Message
from tests.quorum.recovery.copies_world import found, replica

SECRET = "planted-1"


class _Ids:
    def __init__(self) -> None:
        self._last = 0

    def new(self) -> bytes:
        self._last += 1
        return self._last.to_bytes(16)


def records_of(directory: Path, document: Any) -> list[Message]:
    """Read a document as the command does."""
    path = directory / "access.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    path.chmod(0o600)
    return access_records(str(path), _Ids().new)


def mistakes_in(directory: Path, document: Any, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the sentences about a document, without the name of its file."""
    with pytest.raises(CliError) as refusal:
        records_of(directory, document)
    path = f"{directory / 'access.json'}"
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert SECRET not in f"{lines}{refusal.value}"
    if not lines:
        return [str(refusal.value).removeprefix(f"{path}: ")]
    assert str(refusal.value) == f"{path} has {len(lines)} mistakes (see above): nothing was done"
    return [each.removeprefix(f"odradek: {path}: ") for each in lines]


def test_all_forms_of_the_collection(tmp_path: Path) -> None:
    """Entries as in an inventory become the records that the commands would have written."""
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    records = records_of(
        tmp_path,
        {
            "users": [
                {"name": "alice", "password": SECRET, "state": "present"},
                {"name": "alice", "password_file": str(file), "mechanism": "scram-sha-256"},
                {"name": 7, "password": 123},
                {"name": "gone", "state": "absent"},
            ],
            "acls": [
                {
                    "user": "alice",
                    "operation": "describe_configs",
                    "topic": "t",
                    "prefixed": True,
                    "host": "10.0.0.1",
                },
                {"user": "Group:x", "operation": "ALL", "cluster": True, "deny": True},
                {"user": "*", "operation": "write", "transactional_id": "*"},
                {"user": "*", "operation": "write", "transactional_id": "*"},
                {"user": "alice", "operation": "read", "group": "g", "state": "absent"},
            ],
            "quotas": [
                {
                    "user": "alice",
                    "client_id": "<default>",
                    "produce_rate": "1M",
                    "request_percentage": 50,
                    "fetch_rate": None,
                },
                {"ip": "<default>", "connection_rate": 10},
                {"user": "gone", "state": "absent"},
            ],
        },
    )
    builder = ImageBuilder(MetadataImage.empty("c"))
    for offset, record in enumerate(records):
        builder.replay(offset, record)
    access = builder.build()[0].access
    assert sorted(access.scram_credentials) == [("7", 2), ("alice", 1), ("alice", 2)]
    for record in records:
        if isinstance(record, UserScramCredentialRecord) and record.name == "alice":
            mechanism = next(each for each in MECHANISMS.values() if each.number == record.mechanism)
            salted = hashlib.pbkdf2_hmac(mechanism.hash, SECRET.encode(), record.salt, 4096)
            assert server_keys(mechanism, salted, record.salt, 4096).stored_key == record.stored_key
            assert len(record.salt) == 16
    assert sorted(map(str, access.acls.values())) == [
        "ALLOW User:* from host *: WRITE on TRANSACTIONAL_ID *",
        "ALLOW User:alice from host 10.0.0.1: DESCRIBE_CONFIGS on prefixed TOPIC 't'",
        "DENY Group:x from host *: ALL on CLUSTER 'kafka-cluster'",
    ]
    assert dict(access.client_quotas) == {
        ((("client-id", None), ("user", "alice")), "producer_byte_rate"): 1 << 20,
        ((("client-id", None), ("user", "alice")), "request_percentage"): 50.0,
        ((("ip", None),), "connection_creation_rate"): 10.0,
    }


def test_all_mistakes_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its place, and no sentence has a password."""
    found_mistakes = mistakes_in(
        tmp_path,
        {
            "user": [],
            "users": [
                {"password": SECRET},
                {"name": "a"},
                {"name": "b", "password": SECRET, "password_file": "/nowhere"},
                {"name": "c", "password_file": str(tmp_path / "nowhere")},
                {"name": "d", "pasword": SECRET, "password": [SECRET]},
                {"name": "e", "password": f"{SECRET}\ud800"},
                {"name": "f", "password": SECRET, "mechanism": "PLAIN"},
                {"name": "g", "password": SECRET},
                {"name": "g", "password": SECRET},
                {"name": "h", "password": SECRET, "state": "gone"},
                f"i:{SECRET}",
            ],
            "acls": [
                {"user": "a", "operation": "read"},
                {"user": "a", "operation": "read", "topic": "t", "group": "g"},
                {"operation": "read", "topic": "t"},
                {"user": "a", "operation": "raed", "topic": "t"},
                {"user": "a", "operation": "write", "group": "g"},
                {"user": "a", "operation": "read", "topic": "t", "deny": "false"},
            ],
            "quotas": [
                {"produce_rate": 1},
                {"user": "a"},
                {"user": "a", "produce_rate": "much"},
                {"ip": "here", "connection_rate": 1},
                {"user": "b", "connection_rate": 1},
                {"user": "c", "request_percentage": True},
            ],
        },
        capsys,
    )
    expected = [
        "the key user is unknown: expected one of users, acls, quotas",
        "entry 1 of users has no name",
        "entry 2 of users (a) has no password",
        "entry 3 of users (b) must have either password or password_file, which names a file",
        f"entry 4 of users (c): cannot read a password from {tmp_path}/nowhere: [Errno 2] No such file or directory: "
        f"'{tmp_path}/nowhere'",
        "entry 5 of users (d) has no key pasword: expected some of name, password, password_file, mechanism, state",
        "entry 5 of users (d): password must be a text",
        "entry 6 of users (e): password is not text in UTF-8",
        "entry 7 of users (f): mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512",
        "entry 9 of users (g) is a second password of this user for SCRAM-SHA-512",
        "entry 10 of users (h): state must be present or absent",
        "entry 11 of users must be an object",
        "entry 1 of acls (a) must have one of topic, group, transactional_id, cluster",
        "entry 2 of acls (a) must have one of topic, group, transactional_id, cluster",
        "entry 3 of acls has no user",
        "entry 4 of acls (a): operation raed is unknown: expected one of all, read, write",
        "entry 5 of acls (a): operation a group has no operation write; possible operations are read",
        "entry 6 of acls (a): deny must be true or false",
        "entry 1 of quotas needs a user, a client_id, both, or an ip",
        "entry 2 of quotas (a) has no limit: give one of produce_rate",
        "entry 3 of quotas (a): produce_rate: 'much' is not a number of bytes above 0 (for example 50M)",
        "entry 3 of quotas (a) is listed twice: write its limits into one entry",
        "entry 4 of quotas (here): here is not a valid IP or resolvable host.",
        "entry 5 of quotas (b): an ip has a connection_rate and nothing else, and only an ip has one",
        "entry 6 of quotas (c): request_percentage must be a number",
    ]
    assert len(found_mistakes) == len(expected), found_mistakes
    for said, wanted in zip(found_mistakes, expected, strict=True):
        assert said.startswith(wanted), said


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[]", "must be one object with some of the lists users, acls, quotas"),
        ('{"users": 1}', "users must be a list"),
        (
            f'{{"users": [{{"name": "a", "password": "{SECRET}"}}',
            "is not JSON: Expecting ',' delimiter in line 1",
        ),
        ("[" * 100_000, "a list that is too large"),
    ],
)
def test_what_is_no_such_file(
    tmp_path: Path, document: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says which form is expected."""
    (mistake,) = mistakes_in(tmp_path, document, capsys)
    assert said in mistake


def test_a_file_that_everybody_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning says how to hide it."""
    path = tmp_path / "access.json"
    path.write_text("{}")
    path.chmod(0o644)
    assert access_records(str(path), _Ids().new) == []
    assert f"every user of this machine may read {path}, which has passwords" in capsys.readouterr().err


def test_the_dry_run_names_what_comes_and_what_is_missing(tmp_path: Path) -> None:
    """Users, rights and quotas are listed. Missing users and rights are reported with the consequences."""
    nodes = [found(1, None, replica(1, 1))]
    without = rebuild(nodes, Named())
    assert review(without, nodes) == []
    assert [each for each in evidence(without, nodes) if "every login by SCRAM is refused" in each]
    assert [each for each in evidence(without, nodes) if "nobody has any rights" in each]
    access = records_of(
        tmp_path,
        {
            "users": [{"name": "a", "password": SECRET}],
            "acls": [{"user": "b", "operation": "read", "topic": "t"}],
            "quotas": [{"user": "a", "fetch_rate": 5}],
        },
    )
    given = rebuild(nodes, Named(), access)
    assert review(given, nodes) == [
        ("users", ["a"]),
        ("rights", ["ALLOW User:b from host *: READ on TOPIC 't'"]),
        ("quotas", ["user a: consumer_byte_rate=5"]),
    ]
    assert not [each for each in evidence(given, nodes) if "--access" in each]


def test_mistakes_of_topics_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As those of the access file."""
    path = tmp_path / "topics.json"
    path.write_text(json.dumps([{"name": "a", "configs": {"retention.ms": "soon"}}, 5, {"name": "b"}]))
    with pytest.raises(CliError, match="has 2 mistakes"):
        topic_configs_in(str(path))
    first, second = capsys.readouterr().err.splitlines()
    assert "topic a: Invalid value soon for configuration retention.ms" in first
    assert "entry 2 is not an object with a name and configs" in second
