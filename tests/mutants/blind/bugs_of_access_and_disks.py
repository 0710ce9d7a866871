"""Mutants of rights, quotas, and a broker's log directories."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ACLS = "odradek.security.acls."
DISKS = "odradek.data_plane.disks."
QUOTAS = "odradek.data_plane.quotas.client_quotas:"

BUGS_OF_ACCESS_AND_DISKS: tuple[Mutant, ...] = (
    Mutant(
        "prefix-as-long-as-the-name",
        "Off by one: a rule for names with a prefix leaves out the prefix itself, so a denial does not hold there.",
        ACLS + "acl_index:AclIndex._about",
        """
        - if length > len(name):
        + if length >= len(name):
        """,
    ),
    Mutant(
        "remembered-right-outlives-its-rule",
        "A connection remembers that it may: a right that was withdrawn holds until the client connects anew.",
        ACLS + "authorizer:Rights.allows",
        """
        - if self._generation == self._authorizer.generation and self._known.get((operation, resource_type, name)):
        + if self._known.get((operation, resource_type, name)):
        """,
    ),
    Mutant(
        "renewed-token-never-ends",
        "A delegation token can be renewed beyond its maximal lifetime: a stolen one is valid for ever.",
        "odradek.metadata_quorum.controller.access.tokens:_renewed",
        """
        - return min(token.max_timestamp, request.now.wall_ms + period_ms)
        + return request.now.wall_ms + period_ms
        """,
    ),
    Mutant(
        "short-requests-are-free",
        "Time of short requests is gathered and forgotten: a client with many of them is never throttled.",
        QUOTAS + "Account.charge_turn",
        """
        - self._gathered = seconds
        """,
    ),
    Mutant(
        "changed-quota-not-taken",
        "A quota that is changed has no effect on clients that are known already: one client starves the others.",
        QUOTAS + "Account.judge",
        """
        - if rate != self.rate:
        -     self.set_rate(rate, rate * burst_seconds, now)
        """,
    ),
    Mutant(
        "assignment-noted-meanwhile-forgotten",
        "The answer for an older directory removes what was noted meanwhile: the controller never hears where the replica is.",
        DISKS + "directory_assignments:DirectoryAssignments._report",
        """
        - answer.error_code in _FINAL and self.pending.get(replica) == directory.id
        + answer.error_code in _FINAL and replica in self.pending
        """,
    ),
    Mutant(
        "copied-from-before-a-cut",
        "What was read before the log was cut is appended to the copy on the new disk: after the swap, other records are there.",
        DISKS + "replica_moves:ReplicaMoves._copy",
        """
        - current.durability.truncations != truncations or (future.log_end_offset > offset)
        + future.log_end_offset > offset
        """,
    ),
    Mutant(
        "cleaner-held-after-a-move-given-up",
        "A log whose move to another disk was given up is never cleaned again, and grows for ever.",
        DISKS + "replica_moves:ReplicaMoves._give_up",
        """
        - log.cleaning.is_held = False
        """,
    ),
    Mutant(
        "wrong-one-of-two-copies-kept",
        "Of two copies that a crash has left, the one that nobody was told of is kept: acknowledged records are set aside.",
        DISKS + "replica_placement:ReplicaPlacement.find",
        """
        - holders.sort(key=lambda log_dir: log_dir.directory_id != assigned)
        + holders.sort(key=lambda log_dir: log_dir.directory_id == assigned)
        """,
    ),
)
