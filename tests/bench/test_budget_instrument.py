"""The measurement of `make costs`: what attackers count, the rate of ordinary clients, and table rows with the worst
figures."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from bench.budget.attackers import ATTACKERS, attackers, sink
from bench.budget.beside import askers
from bench.budget.costs import attacked, costliest
from bench.budget.figures import Cost, Frame, line_row, line_table, write_rows
from bench.budget.frames import THINGS, Costly, growing, paths_of_things
from bench.budget.lines import LINES
from odradek.wire.api import request_class
from odradek.wire.api_keys import ApiKey

FRAME = (1 << 16).to_bytes(4, "big") + bytes(1 << 16)
ANSWER_BYTES = 3 << 20


def cost(version: int, size: str = "1M", stall_ms: float = 1.0, cpu_ms: float = 1.0) -> Cost:
    frame = Frame("broker", ApiKey.METADATA, version, Costly("."), size)
    return Cost(frame, stall_ms, cpu_ms, 0.0, 0.0, "10 B")


def test_a_line_leaves_to_the_row_what_the_row_says() -> None:
    """If a line of `LINES` has paths of its own, they differ from those of the row of its API. Otherwise it leaves them
    out."""
    for key, lines in LINES.items():
        for line in lines:
            if line.grow != THINGS:
                assert not line.grow or {*line.grow} != {*paths_of_things(key)}, line
            else:
                assert growing(line, request_class(key)), line


def test_things_are_those_of_the_newest_row_first() -> None:
    """`paths_of_things` returns the lists whose elements a request repeats. Lists of the newest version come first."""
    assert paths_of_things(ApiKey.FETCH) == ("topics.partitions",)
    assert paths_of_things(ApiKey.OFFSET_FETCH) == (
        "groups.topics.partition_indexes",
        "topics.partition_indexes",
    )
    assert paths_of_things(ApiKey.DELETE_TOPICS) == ("topic_names", "topics")
    assert paths_of_things(ApiKey.HEARTBEAT) == ()


def test_every_frame_is_counted_with_its_whole_answer() -> None:
    """An exchange that is under way when the attack ends is finished, however long it takes, and counted."""
    with sink(ANSWER_BYTES, 0.2) as address, attackers() as attack:
        attack.begin(address, FRAME, 0.0)
        met = attack.end()
        assert (met.answered, met.closed, met.unanswered) == (ATTACKERS, 0, 0)
        assert met.answer_bytes == ATTACKERS * (4 + ANSWER_BYTES)
        attack.begin(address, FRAME, 60.0)
        assert attack.end().ended == ATTACKERS, "a second attack begins anew"


def test_a_connection_that_is_closed_is_opened_anew_and_counted() -> None:
    """If the server closes a connection, the attacker sends its next frame on a new one."""
    accepted = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as listener, attackers() as attack:

        def refuse() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4)
                accepted.release()

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        attack.begin(f"127.0.0.1:{listener.getsockname()[1]}", FRAME, 0.0)
        for _ in range(3 * ATTACKERS):
            assert accepted.acquire(timeout=60)
        met = attack.end()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert met.answered == met.unanswered == 0
    assert met.closed >= 2 * ATTACKERS


def test_a_window_waits_for_the_answers_of_back_to_back_frames() -> None:
    """Frames that take longer than the window still count. The clients' rate is computed over the time that really
    passed."""
    with (
        sink(10, 1.0) as slow,
        sink(10, 0.0) as quick,
        askers(quick, [FRAME], 0.001) as clients,
        attackers() as attack,
    ):
        window, met, seconds = attacked(clients, attack, slow, FRAME, 0.01, 0.0)
    assert met.answered >= ATTACKERS
    assert window.rate > 0
    assert 0 < window.longest_seconds < seconds


def test_a_row_has_the_worst_of_each_figure_and_says_whose_it_is() -> None:
    """A row shows the worst value of each figure with its version. Any figure above its limit marks the row as over
    budget."""
    costs = [
        cost(0, stall_ms=120.0),
        cost(13, cpu_ms=9.0),
        cost(13, "1K", cpu_ms=50.0),
    ]
    costs[1].paced_share, costs[1].back_to_back_share, costs[1].wait_ms = 0.7, 0.5, 501.0
    cells = line_row(costs)
    assert cells[:3] == ["Metadata", "120 (v0)", "50 (v13 1K)"]
    assert cells[5:8] == ["70%", "50%", "501"]
    assert cells[-1] == "**over: stall, 4/s, wait**"
    assert line_table(costs).count("\n") == 3
    assert costliest(costs, 0.0) == [costs[1]], "rates are measured with the largest frames"
    assert costliest(costs, 10.0) == []


def test_the_rows_are_told_whole(tmp_path: Path) -> None:
    """Every measured frame has its own row in the file."""
    path = tmp_path / "rows.tsv"
    write_rows(path, [cost(0), cost(13)])
    lines = path.read_text().splitlines()
    assert [line.split("\t")[:3] for line in lines[1:]] == [["Metadata", "0", "1M"], ["Metadata", "13", "1M"]]
