"""The `metadata-log-promise` file: what this directory's replica has been, kept apart from the metadata log itself.

It lies beside `meta.properties`, so that a metadata log which is lost, with its `quorum-state` and all, is missed. It says
how far the log was synced at least, and whether the replica is *blank*: begun with nothing, and not yet as complete as the
leader's committed log (see `raft/election.py`: who is blank does not vote on logs). Ours alone; Kafka leaves it alone.
"""

from __future__ import annotations

from metadata_quorum.meta_properties import parse_properties
from metadata_quorum.ports import MetadataLogCorrupt
from odradek.env.ports import Dir

__all__ = ["FILE_NAME", "LogPromise"]

FILE_NAME = "metadata-log-promise"
_SIZE_MAX = 1 << 16


class LogPromise:
    """The file of one metadata directory (`root`). `is_kept`: there is one."""

    def __init__(self, root: Dir) -> None:
        """Raises `MetadataLogCorrupt` when it cannot be understood, `DiskError`."""
        self._root = root
        self.is_kept = root.exists(FILE_NAME)
        self.is_blank = False
        self.end_offset = 0
        if self.is_kept:
            self._load()

    @property
    def path(self) -> str:
        return f"{self._root.path}/{FILE_NAME}"

    def _load(self) -> None:
        fields = parse_properties(self._root.read_bytes(FILE_NAME, _SIZE_MAX))
        try:
            self.is_blank = {"true": True, "false": False}[fields["blank"]]
            self.end_offset = int(fields["end.offset"])
            if fields["version"] != "1":
                raise ValueError(f"version {fields['version']} is unknown")
        except (KeyError, ValueError) as error:
            raise MetadataLogCorrupt(f"{self.path} cannot be read: {error}") from error

    def keep(self, *, is_blank: bool | None = None, end_offset: int | None = None) -> None:
        """Remember; durable when it returns. Raises `DiskError`, and nothing has changed then."""
        blank = self.is_blank if is_blank is None else is_blank
        end = self.end_offset if end_offset is None else end_offset
        if self.is_kept and (blank, end) == (self.is_blank, self.end_offset):
            return
        text = f"version=1\nblank={'true' if blank else 'false'}\nend.offset={end}\n"
        self._root.write_atomic(FILE_NAME, text.encode())
        self.is_kept, self.is_blank, self.end_offset = True, blank, end
