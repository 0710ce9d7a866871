"""Mutants of logs on disk: recovery, truncation, retention, indexes, checkpoints, producer state and the cleaner."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOG = "odradek.data_plane.log."
DIRECTORY = LOG + "directory."
PARTS = LOG + "parts."

BUGS_OF_LOGS: tuple[Mutant, ...] = (
    Mutant(
        "recovery-begins-behind-the-recovery-point",
        "Recovery skips the segment that holds the recovery point: what was torn in it by a crash is served.",
        LOG + "recovery:Recovery.run",
        """
        - first + 1 < len(listed) and listed[first + 1].base_offset < self._options.recovery_point
        + first + 1 < len(listed) and listed[first].base_offset < self._options.recovery_point
        """,
    ),
    Mutant(
        "segments-behind-a-cut-stay",
        "Recovery cuts a damaged segment and keeps those behind it: the log has a hole, and offsets jump.",
        LOG + "recovery:Recovery._take",
        """
        - if at + 1 < len(segments.segments):
        + if at + 2 < len(segments.segments):
        """,
    ),
    Mutant(
        "epochs-behind-a-recovered-end",
        "Recovery leaves leader epochs of records that it has cut: followers are told to cut at the wrong offset.",
        LOG + "loading:_settle_offsets",
        """
        - log.epochs.truncate_from_end(log.log_end_offset + 1)
        """,
    ),
    Mutant(
        "retention-above-the-high-watermark",
        "Retention deletes segments above the high watermark: a follower has nothing to catch up from.",
        LOG + "retention:_count",
        """
        - if end_offset > offsets.high_watermark or (is_last and (not segment.size)):
        + if is_last and (not segment.size):
        """,
    ),
    Mutant(
        "retention-bytes-of-one-segment-more",
        "Off by one: a segment is deleted when the excess is only a part of it, so less than retention.bytes stays.",
        LOG + "retention:_count",
        """
        - if not expired and excess >= segment.size:
        + if not expired and excess > 0:
        """,
    ),
    Mutant(
        "log-start-forgotten-at-a-roll",
        "The checkpoint of log starts leaves out logs with several segments: deleted records are there after a restart.",
        DIRECTORY + "offset_checkpoints:OffsetCheckpoints.log_start_text",
        """
        - if start_offset > min(segments.base_offset, segments.durable_base_offset):
        + if start_offset > segments.active.base_offset:
        """,
    ),
    Mutant(
        "starts-of-unopened-logs-lost",
        "Logs that are not open yet lose their starts with the first checkpoint that is written: deleted records come back.",
        DIRECTORY + "offset_checkpoints:OffsetCheckpoints.log_start_text",
        """
        - starts = dict(self.starts)
        + starts = {}
        """,
    ),
    Mutant(
        "clean-marker-stays",
        "The marker of a clean stop stays on the disk: a crash later is taken for a clean stop, and torn tails are served.",
        DIRECTORY + "checkpoints:take_clean_shutdown",
        """
        - directory.remove(CLEAN_SHUTDOWN_FILE)
        """,
    ),
    Mutant(
        "checkpoint-not-written-again",
        "A checkpoint whose write failed counts as written, and is not written again until it changes.",
        DIRECTORY + "offset_checkpoints:OffsetCheckpoints.replace",
        """
        - self._digests.pop(name, None)
        + self._digests[name] = digest
        """,
    ),
    Mutant(
        "time-index-points-behind",
        "Off by one: the time index names the entry behind, and ListOffsets by time skips records.",
        LOG + "segments.segment_index:SegmentIndex.offset_for_timestamp",
        """
        - entry = bisect_right(self.times, timestamp_ms) - 1
        + entry = min(bisect_right(self.times, timestamp_ms), len(self.times) - 1)
        """,
    ),
    Mutant(
        "newest-time-of-the-first-segment",
        "The search for the newest timestamp ends one segment early when timestamps are out of order.",
        LOG + "time_lookup:TimeLookup._offset_of_max_timestamp",
        """
        - if best is not None and best[0] > -negative:
        + if best is not None:
        """,
    ),
    Mutant(
        "new-epoch-from-any-sequence",
        "A new epoch of a producer may begin with any sequence: batches that were lost on the way are not missed.",
        PARTS + "producer_state:ProducerState.check",
        """
        - if base_sequence and known_epoch != NO_EPOCH:
        + if base_sequence < 0:
        """,
    ),
    Mutant(
        "only-the-newest-batch-of-a-producer",
        "Only the newest batch of a producer is kept: the retry of an older one is refused, or written twice.",
        PARTS + "producer_entry:older_batches",
        """
        - return _pack_older(known_delta, offsets, time_ms) + packed[_OLDER_AT:_OLDEST_AT]
        + return b''
        """,
    ),
    Mutant(
        "open-transactions-expire-with-their-producer",
        "A producer whose transaction is open expires with the silent ones: its transaction is forgotten, and never ends.",
        PARTS + "producer_state:ProducerState.expire",
        """
        - if begin == NO_BEGIN:
        + if begin >= 0 and now_ms - timestamp_ms >= expiration_ms:
        +     expired.append(producer_id)
        + elif begin == NO_BEGIN:
        """,
    ),
    Mutant(
        "coordinator-epoch-not-in-snapshots",
        "A snapshot of producers forgets the coordinator's epoch: a marker of an old coordinator is taken after a restart.",
        PARTS + "producer_state:ProducerState.encode",
        """
        - newest_ms, coordinator_epoch, begun
        + newest_ms, -1, begun
        """,
    ),
    Mutant(
        "map-of-keys-too-far",
        "The cleaner's map is full within a segment, and the rest of that segment counts as cleaned: old values stay for ever.",
        LOG + "cleaning.pass_run:PassRun._map",
        """
        - if self._mapped.is_full:
        -     break
        - map_end = max(map_end, end_offset)
        + map_end = max(map_end, end_offset)
        + if self._mapped.is_full:
        +     break
        """,
    ),
    Mutant(
        "cleaned-segment-not-synced",
        "A cleaned segment takes the place of its sources before it is synced: a loss of power leaves neither.",
        PARTS + "cleaned_segment:CleanedSegment.finish",
        """
        - segment.file.sync()
        """,
    ),
    Mutant(
        "swap-marks-after-it-deletes",
        "The old segments go before the cleaned one is marked as complete: a crash between leaves neither.",
        PARTS + "segment_list:SegmentList._swap",
        """
        - begin_swap(directory, cleaned.base_offset)
          renamed: list[str] = []
        ...
        + begin_swap(directory, cleaned.base_offset)
          end_swap(directory, cleaned.base_offset)
        """,
    ),
    Mutant(
        "epochs-cut-one-too-few",
        "A cut leaves the leader epoch that begins at its offset: the next fetch claims an epoch that the log lacks.",
        LOG + "truncation:Truncation._take_cut",
        """
        - self.epochs.truncate_from_end(offset)
        + self.epochs.truncate_from_end(offset + 1)
        """,
    ),
    Mutant(
        "recovery-point-not-lowered",
        "A cut leaves the recovery point on disk above the log's end: after a crash, what was appended since is not recovered.",
        LOG + "truncation:Truncation._save_lowered",
        """
        - self.durability.save_lowered()
        """,
    ),
    Mutant(
        "committed-after-an-abort-cleaned-away",
        "The cleaner takes all that a producer wrote after an abort for aborted: committed records are gone.",
        LOG + "cleaning.ended_transactions:EndedTransactions.is_aborted",
        """
        - return at >= 0 and header.base_offset < lasts[at]
        + return at >= 0
        """,
    ),
    Mutant(
        "snapshot-named-before-it-is-synced",
        "A metadata snapshot gets its name before its bytes are synced, and the log below it goes: a loss of power takes both.",
        "odradek.data_plane.metadata_snapshots:FileSnapshotDraft.finish",
        """
        - self._file.sync()
        """,
    ),
)
