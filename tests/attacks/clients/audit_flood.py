"""A client without rights floods the audit log with refusals of long names, so that the lines of its earlier acts
rotate away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from odradek.security.audit.audit_budgets import ALLOWANCES
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.attacks.outcome import Outcome
from tests.attacks.place import AttackedNode, Place

WHO = "client"
CHANGES, REFUSALS = "audit.log", "audit-refusals.log"
SECONDS = 60
NAMES = 20
"""How many refusals of one request get an audit line with the refused name."""
LETTER = "\U0001f600"
"""A letter that takes four bytes in a request, and twelve in JSON."""
SLACK_BYTES = 64 << 10
"""Room for lines about other accounts, and for lines that give only a count."""
WAIT_SECONDS = 60


class AuditFiles:
    """The audit log of a node. All figures count from the moment in which this object was made."""

    def __init__(self, node: AttackedNode) -> None:
        self._directory = node.directory / "data"
        self._node = node
        self._began = {name: self._size(name) for name in (CHANGES, REFUSALS)}
        self._counted = self._only_counted()
        self._began_at = time.monotonic()

    def _size(self, name: str) -> int:
        path = self._directory / name
        return path.stat().st_size if path.exists() else 0

    def _only_counted(self) -> float:
        return self._node.metric("odradek_audit_lines_further_total")

    def grown_bytes(self, name: str) -> int:
        """Return how many bytes a file has grown since the beginning. After a rotation, return the size of a whole
        file."""
        grown = self._size(name) - self._began[name]
        return grown if grown >= 0 else 64 << 20

    def allowed_bytes(self, bytes_at_once: int, bytes_per_second: int) -> float:
        """Return how many bytes the audit log may have grown by since the beginning, under an allowance and with
        `SLACK_BYTES`."""
        return bytes_at_once + SLACK_BYTES + bytes_per_second * (time.monotonic() - self._began_at + 1)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines written since the beginning."""
        path = self._directory / name
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._began[name] if self.grown_bytes(name) < 64 << 20 else 0)
            # The last line may be half written.
            return [json.loads(line) for line in file.read().split(b"\n")[:-1]]

    def told(self, event: str) -> float:
        """Return how many refusals of a kind the log accounts for: those that have a line and those that are only
        counted."""
        written = sum(
            line.get("count", 1)
            for line in self.lines(REFUSALS)
            if line["event"] == event and not line.get("further")
        )
        return written + self._only_counted() - self._counted

    def wait_told(self, event: str, count: int) -> float:
        """Wait until the log accounts for `count` refusals, or until the time is up. Return the number."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (told := self.told(event)) < count and time.monotonic() < deadline:
            time.sleep(0.2)
        return told

    def knows(self, **fields: str) -> bool:
        """Return True if a line about a refusal, also in a rotated file, has these fields."""
        for path in self._directory.glob(f"{REFUSALS}*"):
            with path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n") and fields.items() <= json.loads(line).items():
                        return True
        return False


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Ask for topics with very long names that nobody may see. Then send a request whose refusal must still get a
    line."""
    files, cpu = AuditFiles(place.node), place.node.process.cpu_seconds()
    asked, began = 0, time.monotonic()
    with place.client() as client:
        while time.monotonic() - began < SECONDS * scale or asked < 60 * NAMES:
            names = [f"{time.monotonic_ns()}-{number}-".ljust(993, LETTER) for number in range(NAMES)]
            topics = [MetadataRequestTopic(bytes(16), name) for name in names]
            client.call(MetadataRequest(topics, False, False, False), 12)
            asked += NAMES
        client.call(DeleteTopicsRequest([DeleteTopicState(f"new-{asked}")], [], 5000), 6)
    cpu = place.node.process.cpu_seconds() - cpu
    told = files.wait_told("denied", asked)
    allowed, grown = ALLOWANCES["denied"], files.grown_bytes(REFUSALS)
    bound = files.allowed_bytes(allowed.bytes_at_once, allowed.bytes_per_second)
    yield Outcome(
        "one principal's refusals take so many bytes of the audit log",
        grown <= bound,
        f"{asked} names asked in {time.monotonic() - began:.0f} s, {cpu:.1f} s of CPU: {grown >> 10} KiB, allowed {bound / 1024:.0f}",
    )
    strange = [line for line in files.lines(CHANGES) if line["event"] in ("denied", "login.failed")]
    yield Outcome("refusals displace no logins and changes", not strange, repr(strange[:1])[:100])
    yield Outcome("each refusal is written or counted", told >= asked, f"{told:.0f} of {asked}")
    # The active controller decides who may delete a topic, and writes the line on its own node.
    of_nodes = [AuditFiles(node) for node in place.nodes]
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := any(each.knows(principal="User:client", api="DeleteTopics") for each in of_nodes)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    yield Outcome("a flood does not hide what its author does for the first time", found)
