"""The execution of the driver's steps in the two-phase protocol. It uses a producer, and sends requests to
the coordinators. SHELL.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.client.errors import ClientError
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.kept_clients import fencing, kept_decisions, kept_producer
from odradek.spark.delivery.markers import decision_key, decision_value
from odradek.spark.delivery.pool import driver_id, end_transactions, open_slots
from odradek.spark.delivery.two_phase import Decision, DriverProtocol, DriverStep, Prepared
from odradek.wire.errors import KafkaError

__all__ = ["run_driver"]


def run_driver(
    properties: Mapping[str, str], topic: str, protocol: DriverProtocol, begin: int | None = None
) -> None:
    """Commit or abort a batch after its tasks have reported. `topic` is the decisions topic, in which the query's
    progress begins at offset `begin` (None: unknown).

    Raises:
        ProgressError: the batch contradicts the last decision, or its rows differ from the decided rows.
        RuntimeError: the batch was not finished; the text is one sentence. Running it again is safe.
    """
    try:
        with (
            kept_decisions(properties, topic) as decisions,
            kept_producer(properties, driver_id(protocol.query)) as producer,
        ):
            if begin is not None:
                decisions.begins[protocol.query] = begin
            _Driver(decisions, producer, protocol).run()
    except (KafkaError, ClientError) as error:
        if fencing(error) is not None:
            raise RuntimeError(
                f"another driver of {protocol.query} has taken over, so this driver ends: {error}"
            ) from error
        how = "aborted" if protocol.aborts else "committed"
        raise RuntimeError(
            f"batch {protocol.batch} of {protocol.query} could not be {how} completely: "
            f"{str(error).rstrip('.')}; the next run of the query finishes this."
        ) from error
    protocol.check_rows()


@attrs.define
class _Driver:
    decisions: Decisions
    producer: Producer
    protocol: DriverProtocol

    def run(self) -> None:
        """Perform one step after the other until the protocol is done."""
        protocol = self.protocol
        while protocol.step is not DriverStep.DONE:
            match protocol.step:
                case DriverStep.FENCE:
                    self.producer.init_transactions()
                    protocol.fenced()
                case DriverStep.READ:
                    protocol.read(self._last())
                case DriverStep.ROLL_FORWARD:
                    self._end(self._known().winners, commit=True)
                    protocol.rolled_forward()
                case DriverStep.DECIDE:
                    self._write(protocol.proposal())
                    protocol.decided()
                case DriverStep.COMPLETE:
                    self._end(self._known().winners, commit=True, all_open=True)
                    protocol.completed()
                case DriverStep.LIST:
                    client = self.decisions.client
                    seconds = self.decisions.timeout
                    protocol.found(client.run(open_slots(client.core, protocol.query, seconds)))
                case DriverStep.PROVE:
                    self._write(self._known())
                    protocol.proved()
                case DriverStep.SWEEP:
                    self._end(protocol.superfluous, commit=False)
                    protocol.swept()
                case DriverStep.FINISH:
                    self._write(attrs.evolve(self._known(), is_complete=True))
                    protocol.finished()
                case DriverStep.DROP:
                    self._end(protocol.superfluous, commit=False)
                    protocol.dropped()

    def _last(self) -> Decision | None:
        """Return the last decision.

        An abort reads it without the check that earlier batches were written in the same delivery mode.
        """
        protocol = self.protocol
        if protocol.aborts:
            key, end = self.decisions.end_of(protocol.query)
            return self.decisions.read(protocol.query, key, end).decision
        return self.decisions.last(protocol.query, protocol.batch)

    def _known(self) -> Decision:
        assert self.protocol.decision is not None
        return self.protocol.decision

    def _write(self, decision: Decision) -> None:
        query, producer = self.protocol.query, self.producer
        key = self.decisions.key_of(query)
        producer.begin_transaction()
        producer.send(
            key.topic, key=decision_key(query), value=decision_value(decision), partition=key.partition
        )
        producer.commit_transaction()

    def _end(self, wanted: tuple[Prepared, ...], *, commit: bool, all_open: bool = False) -> None:
        client, query, seconds = self.decisions.client, self.protocol.query, self.decisions.timeout
        client.run(
            end_transactions(client.core, query, wanted, commit=commit, all_open=all_open, timeout=seconds)
        )
