"""Who has asked for a change: the console follows audit logs on its machine, and says what they do not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.console.sessions import audit_authors
from odradek.console.sessions.audit_authors import AuditAuthors
from odradek.operations.cluster_events import Event
from tests.console.http.served import Lines


def change(offset: int, principal: str, epoch: int = 3) -> str:
    """Make a line of an audit log."""
    fields = {"principal": principal, "address": "10.0.0.1", "client_id": "c", "api": "CreateTopics"}
    offsets = {"epoch": epoch, "first_offset": offset, "last_offset": offset}
    return json.dumps({"event": "metadata.changed", **fields, **offsets}) + "\n"


def who(authors: AuditAuthors, offset: int, epoch: int = 3) -> str | None:
    """Return the principal behind a record of the metadata log."""
    found = authors.author(Event(offset, 0, "topic", "topic t", "was created", epoch))
    return None if found is None else found.principal


def test_files_are_read_on_also_after_they_were_rotated(tmp_path: Path) -> None:
    """Each line counts once, whatever the file's name is by then. A line that is still being written waits."""
    authors = AuditAuthors([str(tmp_path)])
    assert authors.knows_files
    authors.read_on()
    file = tmp_path / "audit.log"
    file.write_text(change(1, "User:a") + change(2, "User:b")[:20])
    authors.read_on()
    assert [who(authors, offset) for offset in (1, 2)] == ["User:a", None]
    file.write_text(change(1, "User:a") + change(2, "User:b"))
    file.rename(tmp_path / "audit.log.1")
    (tmp_path / "audit.log").write_text(change(3, "User:c"))
    authors.read_on()
    assert [who(authors, offset) for offset in (1, 2, 3)] == ["User:a", "User:b", "User:c"]
    assert authors.gaps([Event(9, 0, "topic", "t", "", 3), Event(1, 0, "topic", "t", "", 3)], {3: 7}) == [
        "1 event in epoch 3 (the lines of controller 7 up to offset 9 were rotated away or never written)"
    ]


def test_only_the_end_of_large_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest lines count. Memory stays bounded although the log goes on."""
    size = len(change(100_000, "User:a"))
    monkeypatch.setattr(audit_authors, "READ_BYTES_MAX", 10 * size)
    file = tmp_path / "audit.log"
    file.write_text("".join(change(offset, "User:a") for offset in range(100_000, 100_100)))
    authors = AuditAuthors([str(file)])
    authors.read_on()
    assert [who(authors, offset) for offset in (100_000, 100_080, 100_099)] == [None, None, "User:a"]
    for offset in range(100_100, 100_150):
        with file.open("a") as stream:
            stream.write(change(offset, "User:b"))
        authors.read_on()
        assert who(authors, offset) == "User:b"
    assert who(authors, 100_099) is None


def test_a_file_that_cannot_be_read_is_logged_once(tmp_path: Path) -> None:
    """The history still answers, without names."""
    log = Lines()
    authors = AuditAuthors([str(tmp_path / "none.log")], log)
    for _ in range(3):
        authors.read_on()
    assert log.events == ["console.audit_unreadable"]
    assert not AuditAuthors().knows_files
