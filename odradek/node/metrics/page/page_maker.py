"""Makes pages for all readers: one at a time, in slices, with pauses after them. PORTED.

After each slice of a page, other tasks have a turn of the event loop. After a page, no other one is made for
`OTHERS_SHARE` times as long as this page took. All readers that wait meanwhile for the same form get the same page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from odradek.env.ports import Event, Log, Workers
from odradek.node.metrics.hosted_figures import Slices
from odradek.node.metrics.page.loop_lateness import PageCosts
from odradek.node.metrics.page.page_forms import PageForm, compressed
from odradek.serving.node_env import NodeEnv

__all__ = ["OTHERS_SHARE", "MadePage", "PageMaker"]

OTHERS_SHARE = 11


@attrs.define
class MadePage:
    """A page, and its compressed bytes once a reader has wanted them."""

    text: bytes
    gzip: bytes | None = None


@attrs.define
class _Series:
    """The pages of one form. A page has the number of pages that were begun until then."""

    begun: int = 0
    ended: int = 0
    newest: MadePage | None = None


class PageMaker:
    """The maker of all pages of a node."""

    def __init__(
        self,
        env: NodeEnv,
        log: Log,
        render: Callable[[PageForm], Slices[bytes]],
        prepare: Callable[[], Awaitable[None]] | None = None,
        costs: PageCosts | None = None,
    ) -> None:
        """Make the pages that `render` returns. `prepare` is awaited before each page, and must end soon. What the pages
        cost is added to `costs`.
        """
        self._clock, self._new_event = env.clock, env.event
        self._workers: Workers = env.workers
        self.log = log
        self._render = render
        self._prepare = prepare
        self._series: dict[PageForm, _Series] = {}
        self._making: Event | None = None
        """Set when the page that is being made has ended; None while there is none."""
        self._free_at = float("-inf")
        """The time until which no page is made, so that other work gets the event loop."""
        self.costs = PageCosts() if costs is None else costs

    async def page(self, form: PageForm) -> MadePage | None:
        """Return a page that was begun after this call; None if a part of the node raised an error."""
        series = self._series.setdefault(form, _Series())
        seen = series.begun
        while series.ended <= seen:
            if self._making is not None:
                await self._making.wait()
            elif self._clock.monotonic() < self._free_at:
                await self._clock.sleep_until(self._free_at)
            else:
                await self._make(form, series)
        return series.newest

    async def compress(self, page: MadePage) -> bytes:
        """Return the page compressed by gzip. A worker thread does it once for each page."""
        if page.gzip is None:
            page.gzip = await self._workers.run(compressed, page.text)
        return page.gzip

    async def _make(self, form: PageForm, series: _Series) -> None:
        ended = self._making = self._new_event()
        series.begun += 1
        number, spent = series.begun, 0.0
        newest: MadePage | None = None
        is_bug = False
        try:
            if self._prepare is not None:
                await self._prepare()
            slices = self._render(form)
            while newest is None:
                began = self._clock.monotonic()
                try:
                    next(slices)
                except StopIteration as end:
                    newest = MadePage(end.value)
                spent += self._clock.monotonic() - began
                if newest is None:
                    await self._clock.sleep_until(0.0)
        except Exception:
            # An error in a figure must not end the node.
            self.log.exception("metrics.bug")
            is_bug = True
        finally:
            if newest is not None or is_bug:
                # Otherwise the reader has gone, whose task made the page. The next one begins anew.
                series.newest, series.ended = newest, number
                self.costs.count += 1
            self.costs.seconds += spent
            self._free_at = self._clock.monotonic() + OTHERS_SHARE * spent
            self._making = None
            ended.set()
