"""Makes the twelve screenshots of docs/console/: `make screenshots`, or `python -m tests.console.browser.screenshots`.

Three nodes run with traffic. Half of the pictures are taken while all is well, the others after a node was killed.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.console.browser.chromium import ARGUMENTS, CHROMIUM
from tests.console.browser.running_console import console
from tests.console.browser.staged_cluster import StagedCluster, nodes, stage

__all__ = ["SHOTS", "main"]

DOCS = Path(__file__).parents[3] / "docs/console"
SIZE = (1280, 800)
BYTES_MAX = 150_000
PATIENCE_MS = 120_000
CHART_MS = 45_000
"""The time in which a chart gets a line."""


@attrs.frozen
class Shot:
    """A picture of a page: the text to wait for, and the steps before it is taken."""

    name: str
    path: str
    shows: str
    prepare: Callable[[Page], object] = lambda page: None
    is_dark: bool = False
    pause_ms: int = 4_000
    """The time for panels that are asked for beside the first answer, for rates and for charts."""


def _open_first(page: Page) -> None:
    page.get_by_role("button", name="Record").first.click()
    page.get_by_role("group", name="Value").wait_for()


def _wait_for_trouble(page: Page) -> None:
    page.locator(".cell.behind, .cell.elr").first.wait_for(timeout=PATIENCE_MS)


SHOTS = (
    Shot("cluster", "/", "records in", pause_ms=CHART_MS),
    Shot("moves", "/moves", "archive", pause_ms=15_000),
    Shot("brokers", "/brokers", "active controller"),
    Shot("topics", "/topics?sort=-bytes", "sensors.raw"),
    Shot("configuration", "/topics/orders?tab=configuration", "134217728"),
    Shot("messages", "/messages?topic=orders&filter=Reykjav%C3%ADk", "records found", _open_first),
    Shot("transactions", "/transactions", "forgetful-1"),
    Shot("clients", "/clients", "warehouse"),
    Shot(
        "access",
        "/access?principal=User%3Aalice&operation=write&kind=topic&resource=payments",
        "Yes",
    ),
    Shot("group", "/groups/audit", "grows", pause_ms=CHART_MS),
)
"""The pictures while all nodes run."""
SHOTS_OF_TROUBLE = (
    Shot("trouble", "/", "Something is wrong", is_dark=True, pause_ms=20_000),
    Shot("map", "/topics/orders", "skew of leaders", _wait_for_trouble),
)
"""The pictures after the death of a node."""


def main() -> int:
    """Make all pictures. Return the exit status."""
    if CHROMIUM is None:
        print("no Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    DOCS.mkdir(exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odradek-")))
        cluster = stack.enter_context(nodes(directory))
        stack.enter_context(stage(cluster))
        url = stack.enter_context(console(cluster.bootstrap))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        stack.callback(browser.close)
        too_large = [_take(browser, url, SHOTS[0])]
        _begin_a_move(cluster)
        too_large += [_take(browser, url, shot) for shot in SHOTS[1:]]
        os.kill(cluster.pids[3], signal.SIGKILL)
        too_large += [_take(browser, url, shot) for shot in SHOTS_OF_TROUBLE]
    return int(any(too_large))


def _begin_a_move(cluster: StagedCluster) -> None:
    words = ("--replicas", "2", "--execute", "--throttle", "200K", "--no-wait")
    cluster.run("partition", "move", "archive", *words)


def _take(browser: Browser, url: str, shot: Shot) -> bool:
    """Take a picture. True if it is too large."""
    context = browser.new_context(
        viewport={"width": SIZE[0], "height": SIZE[1]},
        color_scheme="dark" if shot.is_dark else "light",
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.goto(url + shot.path)
        page.locator("main").get_by_text(re.compile(shot.shows)).first.wait_for(timeout=PATIENCE_MS)
        shot.prepare(page)
        page.wait_for_timeout(shot.pause_ms)
        data = page.screenshot()
    finally:
        context.close()
    image = Image.open(io.BytesIO(data)).convert("RGB").quantize(192, dither=Image.Dither.NONE)
    path = DOCS / f"{shot.name}.png"
    image.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(DOCS.parents[1])}: {size:,} bytes")
    return size > BYTES_MAX


if __name__ == "__main__":
    sys.exit(main())
