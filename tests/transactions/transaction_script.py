"""Readable scripts for the transaction coordinator: a command, `----`, its records and answers, an empty line.

Commands (times in milliseconds; producers have names in capitals, the transactional id is `t` unless said otherwise):

    settings expiry=MS                    before the first request
    ids COUNT                             how many producer ids are left from now on
    init NAME [timeout=MS] [as=NAME|ID/EPOCH] [two-phase] [keep] [id=T]
    add NAME TOPIC-PARTITION... [v=0|2] [epoch=+N|-N] [pid=ID] [id=T]
    verify NAME TOPIC-PARTITION... [epoch=+N|-N] [pid=ID] [id=T]
    end NAME commit|abort [v=0|2] [epoch=+N|-N] [pid=ID] [id=T]
    markers [spent] [id=T]                all partitions have the markers of the ending transaction; with `spent`, one
                                          knows a higher epoch of the producer id
    epoch NUMBER [id=T]                   the producer has used all epochs up to this one
    check                                 the check for transactions that have taken too long
    expire                                the check for transactional ids that nobody uses
    describe [T], list
    wait MS                               time passes, and due events happen in order
    jump MS                               the wall clock is set forward, or with a minus backward
    takeover                              another coordinator begins with the committed records

A producer uses the id and epoch of its last answer. `as=NAME` recovers with the id and epoch of that producer
(KIP-360). The output has the records of decisions, then `NAME request: answer` for each producer that gets an answer.
After each command, the state that the log gives is compared with the coordinator's.
"""

from __future__ import annotations

from typing import Any

import attrs

from odradek.data_plane.coordination.asking import Reply
from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.transactions.counts import TransactionCounts
from odradek.data_plane.transactions.machine import Changed, TransactionMachine
from odradek.data_plane.transactions.requests import (
    AbortTimedOut,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    ExpireIds,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    Producer,
    Verified,
    VerifyPartitions,
)
from odradek.data_plane.transactions.state import (
    NO_PRODUCER_EPOCH,
    Transaction,
    TransactionRecord,
    TransactionsState,
    record_of,
    state_of,
)
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.env.agreed_clock import AgreedClock
from odradek.wire.errors import ErrorCode
from testkit.coordinating import WALL_MS, HeldLog, ScriptedCoordinator

RECORD_VERSION = 1
SETTINGS = TransactionSettings()


def read_transactions(latest: Latest) -> TransactionsState:
    """Return the state that a new coordinator restores from these records. All of them must be readable."""
    skipped: list[str] = []
    state = state_of(latest, skipped)
    assert not skipped
    return state


def as_read(state: TransactionsState) -> tuple[dict[str, Transaction], dict[str, int], int]:
    """Return the part of a state that its records contain."""
    return (
        {
            name: attrs.evolve(each, last_producer_epoch=NO_PRODUCER_EPOCH)
            for name, each in state.transactions.items()
        },
        dict(state.open.items()),
        state.weight,
    )


class Told:
    """A reply that writes its answer into the output."""

    def __init__(self, script: TransactionScript, name: str, what: str) -> None:
        self._script = script
        self._name = name
        self._what = what

    def complete(self, response: Any) -> None:
        if isinstance(response, Producer) and not response.code and response.producer_id >= 0:
            self._script.known[self._name] = (response.producer_id, response.producer_epoch)
        self._script.lines.append(f"{self._name} {self._what}: {_tell(response)}")


class TransactionScript(ScriptedCoordinator[TransactionsState, Changed]):
    """Runs the commands of one script against one coordinator."""

    def __init__(self) -> None:
        super().__init__(HeldLog(read_transactions))
        self._jumped_ms = 0
        clock: Any = self
        self._clock = AgreedClock(clock)
        self.known: dict[str, tuple[int, int]] = {}
        """The last producer id and epoch of each producer."""
        self._settings = SETTINGS
        self._ids_left = 1_000
        self._ids_taken = 0
        self._lead(TransactionsState())

    def monotonic(self) -> float:
        """Return seconds, as a clock does."""
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        """Return the wall clock's time."""
        return WALL_MS + self.now_ms + self._jumped_ms

    def _take_producer_id(self) -> int | None:
        if not self._ids_left:
            return None
        self._ids_left -= 1
        self._ids_taken += 1
        return self._ids_taken

    def _lead(self, state: TransactionsState) -> None:
        machine = TransactionMachine(
            self._settings, self._take_producer_id, lambda: RECORD_VERSION, TransactionCounts()
        )
        machine.take_over(state, self.now_ms)
        self.lead(machine, machine.deadlines, state, lambda: bytes(16))

    @property
    def state(self) -> TransactionsState:
        return self.runtime.state

    def ask(self, name: str, what: str, request: Any) -> None:
        """Let the machine decide a request. The answer is written into the output when it comes."""
        self.submit(request, 0, Told(self, name, what) if name else None)

    def asked_at_ms(self) -> int:
        """Return the latest time that the clock of every node has certainly reached."""
        return self._clock.latest_ms()

    def submit(
        self, request: object, version: int, reply: Reply | None, client_id: str = "", host: str = ""
    ) -> None:
        """Decide a request, and compare the log with the state."""
        super().submit(request, version, reply, client_id, host)
        assert as_read(self.log.state()) == as_read(self.state), "the log says something else"

    # -- commands -----------------------------------------------------------------------------------------------

    def run(self, command: str) -> list[str]:
        """Run a command. Return the lines that it leads to."""
        verb, *words = command.split()
        self.lines = []
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{verb}")([word for word in words if "=" not in word], options)
        return self.lines

    def do_settings(self, words: list[str], options: dict[str, str]) -> None:
        self._settings = attrs.evolve(self._settings, id_expiration_ms=int(options["expiry"]))
        self._lead(self.state)

    def do_ids(self, words: list[str], options: dict[str, str]) -> None:
        self._ids_left = int(words[0])

    def do_init(self, words: list[str], options: dict[str, str]) -> None:
        claimed = options.get("as")
        who = (-1, -1)
        if claimed is not None:
            who = self.known[claimed] if claimed in self.known else _producer(claimed)
        request = InitProducer(
            options.get("id", "t"),
            int(options.get("timeout", 60_000)),
            *who,
            two_phase="two-phase" in words,
            keep_prepared="keep" in words,
        )
        self.ask(words[0], "init", request)

    def _who(self, name: str, options: dict[str, str]) -> tuple[str, int, int]:
        producer_id, epoch = self.known.get(name, (0, 0))
        return (
            options.get("id", "t"),
            int(options.get("pid", producer_id)),
            epoch + int(options.get("epoch", 0)),
        )

    def do_add(self, words: list[str], options: dict[str, str]) -> None:
        who = self._who(words[0], options)
        self.ask(words[0], "add", AddPartitions(*who, _partitions(words[1:]), int(options.get("v", 2))))

    def do_verify(self, words: list[str], options: dict[str, str]) -> None:
        who = self._who(words[0], options)
        self.ask(words[0], "verify", VerifyPartitions(*who, _partitions(words[1:])))

    def do_end(self, words: list[str], options: dict[str, str]) -> None:
        name, outcome = words
        request = EndTransaction(*self._who(name, options), outcome == "commit", int(options.get("v", 2)))
        self.ask(name, outcome, request)

    def do_markers(self, words: list[str], options: dict[str, str]) -> None:
        each = self.state.transactions[options.get("id", "t")]
        written = MarkersWritten(
            each.transactional_id, each.producer_id, each.producer_epoch, is_spent="spent" in words
        )
        self.ask("", "", written)

    def do_epoch(self, words: list[str], options: dict[str, str]) -> None:
        each = self.state.transactions[options.get("id", "t")]
        later = attrs.evolve(each, producer_epoch=int(words[0]))
        self.log.append_batch([record_of(later, RECORD_VERSION)])
        self.log.high_watermark = len(self.log.records)
        for name, (producer_id, _) in self.known.items():
            if producer_id == each.producer_id:
                self.known[name] = (producer_id, later.producer_epoch)
        self._lead(self.log.state())

    def do_check(self, words: list[str], options: dict[str, str]) -> None:
        self.ask("", "", AbortTimedOut(self._clock.earliest_ms()))

    def do_expire(self, words: list[str], options: dict[str, str]) -> None:
        self.ask("", "", ExpireIds(self._clock.earliest_ms()))

    def do_describe(self, words: list[str], options: dict[str, str]) -> None:
        self.ask("-", "describe", DescribeTransaction(words[0] if words else "t"))

    def do_list(self, words: list[str], options: dict[str, str]) -> None:
        self.ask("-", "list", ListTransactions())

    def do_jump(self, words: list[str], options: dict[str, str]) -> None:
        self._jumped_ms += int(words[0])
        self._clock.observe()

    def do_wait(self, words: list[str], options: dict[str, str]) -> None:
        self.wait(int(words[0]))

    def do_takeover(self, words: list[str], options: dict[str, str]) -> None:
        self.runtime.resign()
        self._lead(self.log.take_over())

    def tell_record(self, record: CoordinatorRecord) -> str:
        """Describe a transaction's record in words."""
        assert isinstance(record, TransactionRecord)
        if record.transaction is None:
            return f"{record.transactional_id}: forgotten"
        return _tell_transaction(record.transaction)


def _producer(text: str) -> tuple[int, int]:
    producer_id, _, epoch = text.partition("/")
    return int(producer_id), int(epoch)


def _partitions(words: list[str]) -> frozenset[tuple[str, int]]:
    pairs = [word.rpartition("-") for word in words]
    return frozenset((topic, int(index)) for topic, _, index in pairs)


def _tell_transaction(each: Transaction) -> str:
    parts = [f"{each.transactional_id}: {each.status.shown} {each.producer_id}/{each.producer_epoch}"]
    if each.client_version:
        parts.append(f"v{each.client_version}")
    if each.partitions:
        parts.append(f"[{' '.join(f'{topic}-{index}' for topic, index in sorted(each.partitions))}]")
    if each.previous_producer_id >= 0:
        parts.append(f"after {each.previous_producer_id}")
    if each.next_producer_id >= 0 or each.next_producer_epoch >= 0:
        parts.append(f"before {each.next_producer_id}/{each.next_producer_epoch}")
    if each.is_timeless:
        parts.append("timeless")
    return " ".join(parts)


def _tell(response: Any) -> str:
    """Return an answer in one line."""
    if isinstance(response, ErrorCode):
        return response.name
    if isinstance(response, Producer):
        told = response.code.name
        if response.producer_id >= 0:
            told += f" {response.producer_id}/{response.producer_epoch}"
        if response.ongoing_producer_id >= 0:
            told += f", ongoing {response.ongoing_producer_id}/{response.ongoing_producer_epoch}"
        return told
    if isinstance(response, Verified):
        codes = [f"{topic}-{index} {code.name}" for (topic, index), code in sorted(response.codes.items())]
        return ", ".join(codes) or response.code.name
    if isinstance(response, Transaction):
        return _tell_transaction(response)
    assert isinstance(response, TransactionsState)
    return (
        "; ".join(_tell_transaction(each) for _, each in sorted(response.transactions.items())) or "nothing"
    )


def run_script(text: str) -> str:
    """Return the script with its current output."""
    script = TransactionScript()
    out = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line]
        told = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        if commands:
            told += [commands[0], "----", *script.run(commands[0])]
        if told:
            out.append("\n".join(told))
    return "\n\n".join(out) + "\n"


__all__ = ["SETTINGS", "TransactionScript", "as_read", "read_transactions", "run_script"]
