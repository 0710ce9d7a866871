"""Mutants of the client library."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PRODUCER = "odradek.client.producer."
CONSUMER = "odradek.client.consumer."

BUGS_OF_CLIENTS: tuple[Mutant, ...] = (
    Mutant(
        "perhaps-appended-sent-under-a-new-epoch",
        "A batch that may be in the log is sent again under a new epoch, in which no broker knows it for a duplicate.",
        PRODUCER + "sender:Sender._rebase",
        """
        - kept = [batch for batch in lane.batches if not batch.maybe_appended]
        + kept = list(lane.batches)
        ...
        - if batch.maybe_appended:
        + if batch not in kept:
        """,
    ),
    Mutant(
        "halves-of-a-batch-share-a-sequence",
        "Both halves of a batch that was too large have its first sequence: the second is dropped as a duplicate, and acknowledged.",
        PRODUCER + "sender:Sender._split",
        """
        - part.base_sequence = (batch.base_sequence + start) % _SEQUENCE_END
        + part.base_sequence = batch.base_sequence
        """,
    ),
    Mutant(
        "lost-answer-counts-as-never-sent",
        "A batch whose connection broke counts as never sent: it is numbered anew, and is in the log twice.",
        PRODUCER + "sender:Sender._answered",
        """
        - batch.maybe_appended |= not isinstance(call.error, BrokerUnavailable)
        """,
    ),
    Mutant(
        "commits-overtake-each-other",
        "Two commits are under way at once, and the older one may come last: the group goes back, and reads records again.",
        CONSUMER + "commits:Commits._send",
        """
        - while self._queue[0] is not batch:
        + while False:
        """,
    ),
    Mutant(
        "truncation-not-noticed",
        "KIP-320: a consumer goes on behind the end of a log that was cut: it skips what takes the place of the lost records.",
        CONSUMER + "positions:Positions._validated",
        """
        - if end_offset >= state.fetch_offset and end_epoch >= 0:
        + if end_epoch >= 0:
        """,
    ),
    Mutant(
        "deposed-member-commits-on",
        "A member that was thrown out goes on in the name of its next membership: it commits for partitions of others.",
        CONSUMER + "commits:Commits._in_whose_name",
        """
        - if not self._are_held(batch, [key]):
        + if key not in batch.held:
        """,
    ),
)
