"""Long answers come in gzip to clients that take it. Records never do."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from odradek import Admin, Producer
from odradek.client.admin import NewTopic
from odradek.console.http.compression import PAD_BYTES_MAX, ZIP_BYTES_MIN, accepts_gzip, zipped
from odradek.console.http.page_files import read_page_files
from odradek.console.settings import ConsoleSettings
from tests.console.application.console_here import Console, console_for
from tests.node_process import RunningNode


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("br, GZip;q=0.5", True),
        ("deflate, x-gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=nonsense", False),
        ("identity", False),
        ("*", False),
        ("gzipped", False),
    ],
)
def test_only_a_client_that_says_so_takes_gzip(header: str | None, takes: bool) -> None:
    """The header Accept-Encoding names gzip, with a weight above zero."""
    assert accepts_gzip(header) is takes


@pytest.mark.parametrize("data", [b"", b"a", b"abc" * 10_000, bytes(range(256)) * 50])
def test_what_is_zipped_is_what_was_given(data: bytes) -> None:
    """Any reader of gzip gets the same bytes; the added ones vary in their number."""
    assert gzip.decompress(zipped(data)) == data
    padded = [zipped(data, random.Random(seed)) for seed in range(50)]
    assert {gzip.decompress(each) for each in padded} == {data}
    lengths = {len(each) for each in padded}
    assert len(lengths) > 25
    assert max(lengths) - len(zipped(data)) < PAD_BYTES_MAX


@pytest.fixture(scope="module")
def console(node: RunningNode) -> Iterator[Console]:
    with (
        Admin(bootstrap_servers=node.bootstrap) as admin,
        Producer(bootstrap_servers=node.bootstrap) as producer,
    ):
        admin.create_topics([NewTopic(f"zipped-{number:03}", 1, 1) for number in range(60)])
        producer.send("zipped-000", b"a value " * 1000).result(20)
        with console_for(ConsoleSettings(bootstrap=node.bootstrap)) as running:
            yield running


def asked(console: Console, target: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    """Send a request; return the response and its body as it came."""
    connection = HTTPConnection("127.0.0.1", console.port, timeout=30)
    try:
        connection.request(
            "GET", target, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def test_long_answers_are_zipped(console: Console) -> None:
    """The list of topics comes in gzip to clients that take it, and plainly to others; caches keep the two apart."""
    plain, text = asked(console, "/api/topics?search=zipped")
    small, data = asked(console, "/api/topics?search=zipped", Accept_Encoding="gzip, br")
    assert (plain.getheader("content-encoding"), small.getheader("content-encoding")) == (None, "gzip")
    assert plain.getheader("vary") == small.getheader("vary") == "Accept-Encoding"
    assert len(text) > ZIP_BYTES_MIN
    assert len(data) < len(text) / 4
    assert gzip.decompress(data)[:100] == text[:100]


def test_records_short_answers_and_streams_stay_plain(console: Console) -> None:
    """Texts of records may be secrets, so no length may depend on their contents. Short answers gain nothing."""
    for target, status in (
        ("/api/message?topic=zipped-000&partition=0&offset=0", 200),
        ("/api/messages?topic=zipped-000", 200),
        ("/api/download?topic=zipped-000&partition=0&offset=0&part=value", 200),
        ("/api/session", 200),
        (f"/api/{'x' * 3000}", 404),
    ):
        response, _ = asked(console, target, Accept_Encoding="gzip")
        assert (response.status, response.getheader("content-encoding")) == (status, None), target


def test_files_of_pages_are_zipped_once_and_have_tags_of_their_own(console: Console) -> None:
    """Each form of a file has its own tag, by which a browser keeps it."""
    path, file = next((path, each) for path, each in read_page_files().items() if each.zipped is not None)
    plain, text = asked(console, path)
    small, data = asked(console, path, Accept_Encoding="gzip")
    assert text == file.data == gzip.decompress(data)
    assert data == file.zipped
    tags = plain.getheader("etag"), small.getheader("etag")
    assert None not in tags
    assert tags[0] != tags[1]
    for response, tag, headers in (
        (small, tags[1], {"Accept_Encoding": "gzip"}),
        (plain, tags[0], {}),
    ):
        assert response.getheader("content-type") == file.content_type
        assert asked(console, path, If_None_Match=str(tag), **headers)[0].status == 304
    assert asked(console, path, If_None_Match=str(tags[0]), Accept_Encoding="gzip")[0].status == 200
