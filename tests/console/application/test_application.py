"""The console over a real node: pages, the API, its description, events, downloads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, IncompleteRead

import attrs
import jsonschema
import pytest

from odradek.console import application as application_module
from odradek.console.http.page_files import read_page_files
from odradek.console.routes import route_of
from odradek.console.sessions.session import Session
from odradek.console.settings import ConsoleSettings
from odradek.console.shapes.fields import about
from odradek.console.shapes.queries import NoQuery
from odradek.console.shapes.view_errors import ViewError
from odradek.console.streams.thread_stream import ByteStream, EventStream, StreamOver
from odradek.console.views.route import Route, downloaded, streamed, viewed
from odradek.wire.errors import ErrorCode, KafkaError
from tests.console.application.console_here import Console, console_for
from tests.console.http.served import body_of, status_of
from tests.node_process import RunningNode


@pytest.fixture(scope="module")
def console(node: RunningNode) -> Iterator[Console]:
    with console_for(ConsoleSettings(bootstrap=node.bootstrap)) as running:
        yield running


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> Callable[[Route], None]:
    """Return a function that adds a route for this test."""
    more: list[Route] = []

    def find(parts: Sequence[str]) -> object:
        for route in more:
            words = route.match(parts)
            if words is not None:
                return route, words
        return route_of(parts)

    monkeypatch.setattr(application_module, "route_of", find)
    return more.append


@attrs.frozen
class Number:
    """An answer for tests."""

    number: int = attrs.field(metadata=about("a number"))


def test_the_api_describes_what_it_answers(console: Console) -> None:
    """Each view without words of its own answers as the description says."""
    browser = console.browser()
    description = browser.ok("/api/openapi.json")
    assert isinstance(description, dict)
    asked = 0
    for path, operations in description["paths"].items():
        operation = operations.get("get")
        if operation is None or any(each["required"] for each in operation["parameters"]):
            continue
        content = operation["responses"]["200"]["content"]
        if "application/json" not in content:
            continue
        asked += 1
        schema = {**content["application/json"]["schema"], "components": description["components"]}
        jsonschema.validate(browser.ok(path), schema)
    assert asked >= 4
    errors = {**description["components"]["schemas"]["Error"], "components": description["components"]}
    jsonschema.validate(browser.get("/api/nothing")[1], errors)


def test_the_session_of_an_open_cluster_needs_no_login(console: Console) -> None:
    """Without logins, all visitors have the same session, and the cluster is Odradek's."""
    found = console.browser().ok("/api/session")
    assert isinstance(found, dict)
    assert (found["user"], found["login_needed"], found["is_kafka"]) == (None, False, False)
    assert console.browser().log_in(user="a", password="b")[0] == 404


def test_words_of_an_address_are_checked(console: Console) -> None:
    """A word that no view has, or one given twice, is refused with a sentence, whatever it contains."""
    hostile = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    for target in (
        f"/api/overview?{hostile}=1",
        "/api/events?view=overview&view=overview",
        f"/api/events?view={hostile}",
    ):
        response = console.served.get(target)
        assert status_of(response) in (400, 404)
        head = response.partition(b"\r\n\r\n")[0]
        assert b"Content-Type: application/json" in head
        assert b"X-Content-Type-Options: nosniff" in head
        assert b"Cache-Control: no-store" in head
        assert set(json.loads(body_of(response))) == {"status", "code", "sentence"}


@pytest.mark.parametrize(
    "target",
    [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%252e%252e/etc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "/./index.html/..",
        "/style/../../process.py",
        "/..\\..\\process.py",
        "/index.html/",
        "/code/",
        "/__init__.py",
        "/api/../index.html",
        "/api/%2e%2e/index.html",
    ],
)
def test_no_address_leads_out_of_the_pages(console: Console, target: str) -> None:
    """Only files of the pages are served; no path, however written, leads elsewhere."""
    response = console.served.get(target)
    assert status_of(response) == 404
    assert b"root:" not in response


def test_files_of_the_pages_are_asked_again_by_their_tag(console: Console) -> None:
    """A browser that has a file gets 304. Every page of the console is the same file."""
    files = read_page_files()
    response = console.served.get("/")
    assert body_of(response) == files["/index.html"].data
    for path in ("/topics", "/topics/a%2Fb", "/groups/x", "/login", "/messages?topic=a"):
        assert body_of(console.served.get(path)) == files["/index.html"].data
    tag = files["/index.html"].tag
    known = console.served.get("/", f"If-None-Match: {tag}")
    assert (status_of(known), body_of(known)) == (304, b"")
    for path, file in files.items():
        assert body_of(console.served.get(path)) == file.data


def test_equal_views_at_the_same_time_are_computed_once(
    console: Console, adding: Callable[[Route], None]
) -> None:
    """Twenty requests for the same view wait for one computation, and one with other words has its own."""
    calls: list[int] = []
    go = threading.Event()

    def counted(session: Session, query: NoQuery) -> Number:
        """Count."""
        calls.append(1)
        assert go.wait(20)
        return Number(len(calls))

    adding(viewed("/api/counted", counted))
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(console.browser().ok("/api/counted")))
        for _ in range(20)
    ]
    for each in threads:
        each.start()
    deadline = time.monotonic() + 20
    while console.served.server.statistics()["busy"] < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    go.set()
    for each in threads:
        each.join()
    assert answers == [{"number": 1}] * 20


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ViewError(418, "TEA", "no"), 418, "TEA"),
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 403, "TOPIC_AUTHORIZATION_FAILED"),
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT), 504, "REQUEST_TIMED_OUT"),
        (KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), 503, "COORDINATOR_NOT_AVAILABLE"),
        (ZeroDivisionError(), 500, "BUG"),
    ],
)
def test_errors_of_views_have_a_status(
    console: Console, adding: Callable[[Route], None], error: Exception, status: int, code: str
) -> None:
    """An error of the cluster gets HTTP's status for it; a bug is logged, and its text stays in the log."""

    def failing(session: Session, query: NoQuery) -> Number:
        """Fail."""
        raise error

    def failing_file(session: Session, query: NoQuery, stream: ByteStream) -> None:
        """Fail."""
        raise error

    def failing_events(session: Session, query: NoQuery, stream: EventStream) -> None:
        """Fail."""
        raise error

    adding(viewed(f"/api/failing{code}", failing))
    adding(downloaded(f"/api/file{code}", failing_file))
    adding(streamed(f"/api/stream{code}", failing_events, {}))
    for path in (f"/api/failing{code}", f"/api/file{code}"):
        found, document = console.browser().get(path)
        assert isinstance(document, dict)
        assert (found, document["code"]) == (status, code)
    ((name, document),) = console.browser().events(f"/api/stream{code}")
    assert isinstance(document, dict)
    assert (name, document["code"], document["status"]) == ("trouble", code, status)


def test_one_poll_serves_all_who_listen_and_ends_with_them(console: Console) -> None:
    """Pages that listen to the same view share its polls. Polls end with their last listener."""
    listening = [console.browser().events("/api/events?view=overview") for _ in range(3)]
    for each in listening:
        name, document = next(each)
        assert name == "overview"
        assert isinstance(document, dict)
        assert document["judgement"] in ("ok", "warning", "critical")
    statistics = console.application.statistics()
    assert (statistics["polls"], statistics["listeners"]) == (1, 3)
    for each in listening:
        next(each)
        each.close()
    deadline = time.monotonic() + 20
    while console.application.statistics()["polls"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert console.application.statistics()["listeners"] == 0


def test_a_poll_that_fails_goes_on(console: Console, adding: Callable[[Route], None]) -> None:
    """While the cluster cannot answer, listeners get the trouble, and then answers again."""
    calls: list[int] = []

    def shaky(session: Session, query: NoQuery) -> Number:
        """Fail at first."""
        calls.append(1)
        if len(calls) == 1:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Number(7)

    adding(viewed("/api/shaky", shaky))
    events = console.browser().events("/api/events?view=shaky")
    assert next(events)[0] == "trouble"
    assert next(events) == ("shaky", {"number": 7})
    events.close()


def test_a_stream_slows_its_view_down_and_ends_it_when_its_reader_goes(
    console: Console, adding: Callable[[Route], None]
) -> None:
    """A view writes only as fast as its reader reads. It gets to know when the reader has gone, even while it is silent."""
    sent: list[int] = []
    over, called, silent = threading.Event(), threading.Event(), threading.Event()

    def endless(session: Session, query: NoQuery, stream: EventStream) -> None:
        """Send without an end."""
        stream.call_when_over(called.set)
        try:
            while True:
                stream.send("number", Number(10**1000))
                sent.append(1)
        except StreamOver:
            over.set()
            raise

    def waiting(session: Session, query: NoQuery, stream: EventStream) -> None:
        """Send one event, and wait."""
        stream.send("number", Number(1))
        stream.call_when_over(silent.set)
        assert silent.wait(20)
        assert stream.is_over

    adding(streamed("/api/endless", endless, {"number": Number}))
    adding(streamed("/api/waiting", waiting, {"number": Number}))
    events = console.browser().events("/api/endless")
    next(events)
    before = -1
    while len(sent) != before:
        before = len(sent)
        time.sleep(0.2)
    assert not over.is_set()
    events.close()
    assert over.wait(10)
    assert called.wait(10)
    quiet = console.browser().events("/api/waiting")
    assert next(quiet) == ("number", {"number": 1})
    quiet.close()
    assert silent.wait(10)


def test_a_file_that_breaks_off_is_not_taken_for_whole(
    console: Console, adding: Callable[[Route], None]
) -> None:
    """A download has its name. If its view fails in the middle, the browser sees that the end is missing."""

    def half(session: Session, query: NoQuery, stream: ByteStream) -> None:
        """Send half a file."""
        stream.begin('a "b"\n<ü>.bin')
        stream.write(b"half")
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    def whole(session: Session, query: NoQuery, stream: ByteStream) -> None:
        """Send a file."""
        stream.begin("x.jsonl", "application/x-ndjson")
        for _ in range(100):
            stream.write(b"y" * 10_000)

    adding(downloaded("/api/half", half))
    adding(downloaded("/api/whole", whole))
    connection = HTTPConnection("127.0.0.1", console.port, timeout=30)
    connection.request("GET", "/api/half")
    answer = connection.getresponse()
    assert (
        answer.getheader("content-disposition")
        == "attachment; filename*=UTF-8''a%20%22b%22%0A%3C%C3%BC%3E.bin"
    )
    with pytest.raises(IncompleteRead):
        answer.read()
    connection.close()
    connection.request("GET", "/api/whole")
    answer = connection.getresponse()
    assert answer.read() == b"y" * 1_000_000
    connection.close()


def test_streams_are_limited(console: Console, adding: Callable[[Route], None]) -> None:
    """The seventeenth stream is refused with a sentence, and the end of another makes room."""

    def waiting(session: Session, query: NoQuery, stream: EventStream) -> None:
        """Wait for the reader's end."""
        over = threading.Event()
        stream.call_when_over(over.set)
        stream.send("number", Number(1))
        over.wait(30)

    adding(streamed("/api/long", waiting, {"number": Number}))
    open_streams = [console.browser().events("/api/long") for _ in range(16)]
    for each in open_streams:
        next(each)
    assert console.browser().get("/api/long")[0] == 503
    assert console.browser().get("/api/session")[0] == 200
    open_streams.pop().close()
    deadline = time.monotonic() + 20
    while console.application.statistics()["streams"] == 16 and time.monotonic() < deadline:
        time.sleep(0.02)
    open_streams.append(console.browser().events("/api/long"))
    next(open_streams[-1])
    for each in open_streams:
        each.close()


def test_all_views_are_in_the_description(console: Console) -> None:
    """Every route has a summary, and each of its words and fields says what it is."""
    description = console.browser().ok("/api/openapi.json")
    assert isinstance(description, dict)
    for path, operations in description["paths"].items():
        for operation in operations.values():
            assert operation["summary"].endswith("."), path
            assert all(each["description"] for each in operation["parameters"]), path
    for name, schema in description["components"]["schemas"].items():
        for field, about_field in schema["properties"].items():
            assert name == "Error" or about_field.get("description"), (
                f"{name}.{field} does not say what it is"
            )
