"""Changes files below one log directory. The event loop waits for each change only a limited time
(`Dir.in_time`). PORTED.

    made -> answered in time -> ended
       '-> goes on ----------------------> answered late -> ended, or failed

A change has two halves: its work and its end. The disk's thread does the work on the files. Afterwards the
loop calls the end, which changes the state in memory. So the state in memory never runs ahead of the files.
While a late change continues, the device accepts no other change. So at most one change is late, and changes
end in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from odradek.env.ports import Dir, DiskError, DiskHung
from odradek.named_states import reached

T = TypeVar("T")

__all__ = ["LateChanges"]


@attrs.define
class _Change(Generic[T]):
    """One change of files. If the work fails after the loop has stopped waiting for it, `failed` is called
    instead of `end`.
    """

    work: Callable[[], T]
    end: Callable[[T], None]
    failed: Callable[[Exception], None]
    results: list[T] = attrs.field(factory=list)
    failure: Exception | None = None
    is_late: bool = False

    def do(self) -> None:
        """Do the work of the change, perhaps in another thread, and keep its result."""
        try:
            self.results.append(self.work())
        except Exception as error:  # noqa: BLE001 - the loop raises or reports the error
            self.failure = error

    def finish(self) -> None:
        """Call the change's `end` with the result, on the loop. Raises the error of the work, if it failed."""
        if self.failure is None:
            self.end(self.results[0])
        elif self.is_late:
            self.failed(self.failure)
        else:
            raise self.failure


class LateChanges:
    """Makes the changes of files below one log directory. If the device answers late, finishes the change
    then.
    """

    def __init__(self, directory: Dir) -> None:
        self._directory = directory
        self._late: _Change[Any] | None = None

    @property
    def goes_on(self) -> bool:
        """True while a late change continues, after the loop has stopped waiting for it."""
        return self._late is not None

    def make(
        self, work: Callable[[], T], end: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Make a change of files. Arguments and errors are those of `LogOwner.change`."""
        change = _Change(work, end, failed)
        try:
            self._directory.in_time(change.do)
        except DiskHung as error:
            if error.goes_on:
                if self._late is not None:
                    raise AssertionError(
                        f"{self._directory.path}: a change began before the directory's previous "
                        "change had ended"
                    ) from error
                reached("log.change_goes_on_late")
                change.is_late = True
                self._late = change
            raise
        change.finish()

    def finish(self) -> None:
        """End the late change, if there is one, because the device has answered (`Dir.settle`). Raises
        `DiskError`.
        """
        late, self._late = self._late, None
        if late is not None:
            late.finish()

    def give_up(self, error: DiskError) -> None:
        """Give up the late change, if there is one, because the directory is offline."""
        late, self._late = self._late, None
        if late is not None:
            late.failed(error)
