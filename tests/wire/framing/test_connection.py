"""The client and server ends of a connection: every message passes between them, however the bytes are split."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import encode
from odradek.wire.errors import LocalProtocolError, MalformedMessage, RemoteProtocolError
from odradek.wire.framing.connection import (
    CLIENT,
    NEED_DATA,
    PAUSED,
    SERVER,
    ClientConnection,
    ConnectionClosed,
    RequestReceived,
    ResponseReceived,
    ServerConnection,
    Signal,
    State,
    Step,
    UnknownApiKey,
)
from odradek.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.wire.messages.produce import ProduceRequest, ProduceResponse
from odradek.wire.structure import Message
from tests.schedule import examples

Call = tuple[Message, int, Message]
"""A request, its version, and the response to it."""

CALLS: list[Call] = [
    (ApiVersionsRequest("odradek", "1"), 4, ApiVersionsResponse(api_keys=[ApiVersion(3, 0, 13)])),
    (ApiVersionsRequest(), 0, ApiVersionsResponse(api_keys=[ApiVersion(3, 0, 13)])),
    (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 8, MetadataResponse(cluster_id="x")),
    (MetadataRequest(topics=None), 12, MetadataResponse(controller_id=4)),
    (HeartbeatRequest("g", 3, "m"), 3, HeartbeatResponse(error_code=27)),
    (HeartbeatRequest("g", 3, "m"), 4, HeartbeatResponse(error_code=27)),
    (FindCoordinatorRequest(coordinator_keys=["a"]), 6, FindCoordinatorResponse()),
]


@attrs.define
class ConnectionPair:
    """A client and a server end. Bytes travel in pieces of `piece` bytes, and the events of the receiver are returned."""

    piece: int = 1 << 30
    client: ClientConnection = attrs.field(factory=ClientConnection)
    server: ServerConnection = attrs.field(factory=ServerConnection)

    def to_server(self, data: bytes | bytearray) -> list[Any]:
        return list(self._events(self.server, data))

    def to_client(self, data: bytes | bytearray) -> list[Any]:
        return list(self._events(self.client, data))

    def _events(self, end: ServerConnection | ClientConnection, data: bytes | bytearray) -> Iterable[Any]:
        for start in range(0, len(data), self.piece):
            end.receive_data(data[start : start + self.piece])
            while not isinstance(event := end.next_event(), Signal):
                yield event


def joined(chunks: Iterable[Any]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


class TestPair:
    @pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64, 1 << 30])
    def test_pipelined_calls(self, piece: int) -> None:
        """Several requests are pipelined before the first response. Both ends give the same events for any size of
        pieces."""
        pair = ConnectionPair(piece)
        sent = b"".join(pair.client.send(request, version) for request, version, _ in CALLS)
        requests = pair.to_server(sent)
        assert [(event.api_key, event.api_version, event.correlation_id) for event in requests] == [
            (request.API_KEY, version, number) for number, (request, version, _) in enumerate(CALLS)
        ]
        assert all(event.header.client_id == "odradek" and event.is_supported for event in requests)
        assert [event.request() for event in requests] == [request for request, _, _ in CALLS]
        answers = b"".join(joined(pair.server.send(response)) for _, _, response in CALLS)
        assert pair.to_client(answers) == [
            ResponseReceived(number, request.API_KEY, version, response)
            for number, (request, version, response) in enumerate(CALLS)
        ]
        assert pair.client.unanswered == pair.server.unanswered == ()

    def test_each_split_into_two(self) -> None:
        """A frame split anywhere gives the same event, and not before its last byte has arrived."""
        frame = bytes(ClientConnection().send(CALLS[0][0], 4))
        for cut in range(1, len(frame)):
            server = ServerConnection()
            server.receive_data(frame[:cut])
            assert server.next_event() is NEED_DATA
            server.receive_data(frame[cut:])
            event = server.next_event()
            assert isinstance(event, RequestReceived)
            assert event.request() == CALLS[0][0]
            assert server.next_event() is NEED_DATA

    @pytest.mark.long
    @settings(max_examples=examples(60))
    @given(st.lists(st.sampled_from(CALLS), max_size=12), st.integers(1, 400), st.data())
    def test_any_interleaving(self, calls: list[Call], piece: int, data: st.DataObject) -> None:
        """Requests are sent, answered and read in any interleaving. All responses arrive in order."""
        pair = ConnectionPair(piece)
        asked, to_server, to_client = list(calls), bytearray(), bytearray()
        waiting: list[Message] = []
        heard: list[Message] = []
        answers = [response for _, _, response in calls]
        while asked or to_server or waiting or to_client:
            step = data.draw(st.sampled_from([name for name, ready in (
                ("ask", asked), ("carry", to_server), ("answer", waiting), ("bring", to_client)
            ) if ready]))  # fmt: skip
            if step == "ask":
                request, version, _ = asked.pop(0)
                to_server += pair.client.send(request, version)
            elif step == "carry":
                count = data.draw(st.integers(1, len(to_server)))
                for event in pair.to_server(to_server[:count]):
                    assert isinstance(event, RequestReceived)
                    waiting.append(answers.pop(0))
                del to_server[:count]
            elif step == "answer":
                to_client += joined(pair.server.send(waiting.pop(0)))
            else:
                count = data.draw(st.integers(1, len(to_client)))
                heard += [event.response for event in pair.to_client(to_client[:count])]
                del to_client[:count]
        assert heard == [response for _, _, response in calls]

    def test_events_own_their_bytes(self) -> None:
        """Events do not refer to the receive buffer, which may be reused at once."""
        records = bytes(range(200))
        pair = ConnectionPair()
        pair.client.send(FetchRequest(), 12)
        response = FetchResponse(
            responses=[FetchableTopicResponse("t", partitions=[PartitionData(0, records=records)])]
        )
        frame = bytearray(ClientConnection().send(CALLS[2][0], 8))
        pair.server.receive_data(memoryview(frame))
        frame[:] = b"\xaa" * len(frame)
        event = pair.server.next_event()
        assert isinstance(event, RequestReceived)
        assert event.request() == CALLS[2][0]
        server = ServerConnection()
        server.receive_data(ClientConnection().send(FetchRequest(), 12))
        server.next_event()
        wire = bytearray(joined(server.send(response)))
        pair.client.receive_data(wire)
        wire[:] = b"\xaa" * len(wire)
        answer = pair.client.next_event()
        assert isinstance(answer, ResponseReceived)
        assert answer.response == response

    def test_statistics(self) -> None:
        """The statistics of both ends match the frames and bytes that were sent."""
        pair = ConnectionPair()
        frame = pair.client.send(CALLS[4][0], 3)
        pair.to_server(frame + frame[:9])
        stats = pair.server.statistics()
        assert (stats.state, stats.frames_received, stats.frames_sent) == (State.OPEN, 1, 0)
        assert (stats.bytes_received, stats.bytes_buffered, stats.unanswered) == (len(frame) + 9, 9, 1)
        pair.to_client(joined(pair.server.send(CALLS[4][2])))
        assert (pair.client.statistics().frames_sent, pair.client.statistics().frames_received) == (1, 1)
        assert pair.server.statistics().unanswered == pair.client.statistics().unanswered == 0


class TestApiVersions:
    def test_version_from_the_future(self) -> None:
        """An ApiVersions of an unknown version is answered in version 0 with error 35, which the client recognises
        (KIP-511)."""
        pair = ConnectionPair()
        frame = bytearray(pair.client.send(ApiVersionsRequest("x", "y"), 4))
        struct.pack_into(">h", frame, 6, 99)
        frame += b"what version 99 adds"
        struct.pack_into(">i", frame, 0, len(frame) - 4)
        (event,) = pair.to_server(frame)
        assert isinstance(event, RequestReceived)
        assert not event.is_supported
        assert event.request() == ApiVersionsRequest()
        answer = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, 4)])
        sent = joined(pair.server.send(answer))
        assert sent[4:] == struct.pack(">i", 0) + encode(answer, 0)
        assert pair.to_client(sent) == [ResponseReceived(0, ApiKey.API_VERSIONS, 0, answer)]

    def test_other_errors_keep_their_version(self) -> None:
        """Only UNSUPPORTED_VERSION is answered in version 0. Other errors use the requested version."""
        pair = ConnectionPair()
        pair.to_server(pair.client.send(ApiVersionsRequest("", ""), 3))
        answer = ApiVersionsResponse(error_code=42, throttle_time_ms=5)
        assert pair.to_client(joined(pair.server.send(answer))) == [ResponseReceived(0, 18, 3, answer)]

    def test_response_header_is_version_0(self) -> None:
        """The header of an ApiVersions response has no tagged fields, even in flexible versions."""
        pair = ConnectionPair()
        pair.to_server(pair.client.send(ApiVersionsRequest("a", "b"), 4))
        assert joined(pair.server.send(ApiVersionsResponse()))[8:] == encode(ApiVersionsResponse(), 4)


class TestServer:
    def test_unsupported_version(self) -> None:
        """The header of an unsupported version is parsed, but decoding its body is refused."""
        server = ServerConnection()
        body = encode(RequestHeader(0, 2, 5, "c"), 1) + b"body"
        server.receive_data(struct.pack(">i", len(body)) + body)
        event = server.next_event()
        assert isinstance(event, RequestReceived)
        assert (event.api_key, event.api_version, bytes(event.body)) == (0, 2, b"body")
        assert not event.is_supported
        with pytest.raises(RemoteProtocolError):
            event.request()

    def test_unknown_api(self) -> None:
        """An unknown API key fails the connection, and each further call raises again."""
        server = ServerConnection()
        server.receive_data(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        with pytest.raises(UnknownApiKey):
            server.next_event()
        assert server.state is State.FAILED
        with pytest.raises(RemoteProtocolError, match="999"):
            server.next_event()

    @pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
    def test_frame_length_is_checked_before_the_frame_comes(self, length: int) -> None:
        """A bad frame length is refused after its four bytes, and no byte of the frame is kept."""
        server = ServerConnection(max_frame_bytes=1000)
        server.receive_data(struct.pack(">i", length))
        with pytest.raises(RemoteProtocolError):
            server.next_event()
        assert server.statistics().bytes_buffered == 0

    def test_frames_before_a_bad_one_are_handed_out(self) -> None:
        """Requests before a bad frame are still returned."""
        server = ServerConnection()
        server.receive_data(ClientConnection().send(CALLS[4][0], 3) + b"\xff\xff\xff\xff")
        assert isinstance(server.next_event(), RequestReceived)
        with pytest.raises(RemoteProtocolError):
            server.next_event()

    def test_empty_frame(self) -> None:
        """An empty frame is malformed, because it has no header."""
        server = ServerConnection()
        server.receive_data(bytes(4))
        with pytest.raises(MalformedMessage):
            server.next_event()

    def test_answers_go_out_in_order(self) -> None:
        """Responses must be given in the order of requests. Any other order raises LocalProtocolError."""
        pair = ConnectionPair()
        pair.to_server(pair.client.send(CALLS[4][0], 3) + pair.client.send(CALLS[2][0], 8))
        assert pair.server.unanswered == (0, 1)
        with pytest.raises(LocalProtocolError, match="response 1 was given before response 0"):
            pair.server.send(CALLS[2][2], correlation_id=1)
        with pytest.raises(LocalProtocolError, match="cannot answer a request with API key 12"):
            pair.server.send(CALLS[2][2])
        assert pair.server.unanswered == (0, 1)
        pair.server.send(CALLS[4][2], correlation_id=0)
        pair.server.send(CALLS[2][2], correlation_id=1)
        with pytest.raises(LocalProtocolError, match="no request waits"):
            pair.server.send(CALLS[2][2])

    def test_no_answer(self) -> None:
        """A Produce with acks=0 gets no response. The next request is answered as usual."""
        pair = ConnectionPair()
        produce = pair.client.send(ProduceRequest(acks=0), 9, expect_response=False)
        first, _ = pair.to_server(produce + pair.client.send(ProduceRequest(acks=1), 9))
        assert isinstance(first, RequestReceived)
        pair.server.send_nothing(first.correlation_id)
        assert pair.to_client(joined(pair.server.send(ProduceResponse()))) == [
            ResponseReceived(1, 0, 9, ProduceResponse())
        ]
        with pytest.raises(LocalProtocolError):
            pair.server.send_nothing()

    def test_pauses(self) -> None:
        """If too many requests are unanswered, the connection pauses until one is answered."""
        server = ServerConnection(unanswered_max=2)
        client = ClientConnection()
        server.receive_data(b"".join(client.send(CALLS[4][0], 3) for _ in range(3)))
        assert isinstance(server.next_event(), RequestReceived)
        assert isinstance(server.next_event(), RequestReceived)
        assert server.next_event() is PAUSED
        server.send(CALLS[4][2])
        assert isinstance(server.next_event(), RequestReceived)
        assert server.next_event() is PAUSED

    def test_answers_after_the_end(self) -> None:
        """After the client has shut down its sending side, it still gets its responses."""
        server = ServerConnection()
        server.receive_data(ClientConnection().send(CALLS[4][0], 3))
        server.receive_data(b"")
        assert isinstance(server.next_event(), RequestReceived)
        assert server.next_event() == ConnectionClosed((0,))
        assert server.send(CALLS[4][2])
        assert server.next_event() == ConnectionClosed(())

    def test_end_inside_a_frame(self) -> None:
        """A stream that ends within a frame raises RemoteProtocolError."""
        frame = ClientConnection().send(CALLS[0][0], 4)
        for cut in range(1, len(frame)):
            server = ServerConnection()
            server.receive_data(frame[:cut])
            server.receive_data(b"")
            with pytest.raises(RemoteProtocolError, match="inside a frame"):
                server.next_event()


class TestClient:
    def test_correlation_ids(self) -> None:
        """Correlation ids count up and wrap to 0 after 2**31 - 1."""
        client = ClientConnection(next_correlation_id=2**31 - 1)
        client.send(CALLS[4][0], 3)
        client.send(CALLS[4][0], 3)
        assert client.unanswered == (2**31 - 1, 0)

    def test_wrong_correlation_id(self) -> None:
        """A response with another correlation id than that of the oldest request fails the connection."""
        client = ClientConnection()
        client.send(CALLS[4][0], 3)
        client.send(CALLS[4][0], 3)
        client.receive_data(struct.pack(">ii", 10, 1) + bytes(6))
        with pytest.raises(RemoteProtocolError, match="response 1, but the next response must be 0"):
            client.next_event()
        with pytest.raises(LocalProtocolError):
            client.send(CALLS[4][0], 3)

    def test_nobody_asked(self) -> None:
        """A response without a request fails the connection."""
        client = ClientConnection()
        client.receive_data(struct.pack(">ii", 4, 0))
        with pytest.raises(RemoteProtocolError, match="no request waits for a response"):
            client.next_event()

    def test_malformed_response(self) -> None:
        """A truncated response is malformed, and the next call raises again."""
        client = ClientConnection()
        client.send(CALLS[2][0], 8)
        client.receive_data(struct.pack(">iib", 5, 0, 1))
        with pytest.raises(MalformedMessage):
            client.next_event()
        with pytest.raises(RemoteProtocolError):
            client.next_event()

    def test_unanswered_at_the_end(self) -> None:
        """When the stream ends, the event lists the requests that will not be answered."""
        client = ClientConnection()
        for _ in range(3):
            client.send(CALLS[4][0], 3)
        client.receive_data(struct.pack(">iiih", 10, 0, 0, 0) + b"")
        client.receive_data(b"")
        assert isinstance(client.next_event(), ResponseReceived)
        assert client.next_event() == ConnectionClosed((1, 2))
        with pytest.raises(LocalProtocolError, match="ended"):
            client.send(CALLS[4][0], 3)

    def test_limit(self) -> None:
        """The number of pipelined requests is limited. Only requests that get a response count."""
        client = ClientConnection(unanswered_max=1)
        client.send(CALLS[4][0], 3)
        with pytest.raises(LocalProtocolError):
            client.send(CALLS[4][0], 3)
        client.send(ProduceRequest(acks=0), 9, expect_response=False)
        assert client.unanswered == (0,)

    @pytest.mark.parametrize(
        ("message", "version"), [(HeartbeatResponse(), 0), (RequestHeader(), 1), (HeartbeatRequest(), 5)]
    )
    def test_what_is_no_request(self, message: Message, version: int) -> None:
        """A client that sends a response, a header or an unknown version gets LocalProtocolError, and its state stays
        the same."""
        client = ClientConnection()
        with pytest.raises(LocalProtocolError):
            client.send(message, version)
        assert (client.next_correlation_id, client.unanswered) == (0, ())

    def test_long_client_id(self) -> None:
        """A client id too long for its two-byte length is refused."""
        with pytest.raises(LocalProtocolError):
            ClientConnection(client_id="x" * 32768)


class TestStates:
    @pytest.mark.parametrize("table", [SERVER, CLIENT], ids=["server", "client"])
    def test_tables(self, table: dict[State, dict[Step, State]]) -> None:
        """The state tables are complete. Every state can be closed, CLOSED cannot be left, and data is received only
        while OPEN."""
        assert set(table) == set(State)
        for state, steps in table.items():
            assert steps[Step.CLOSE] is State.CLOSED
            assert (Step.DATA in steps) is (state is State.OPEN)
            assert (Step.RECEIVE in steps) is (state in (State.OPEN, State.ENDING))
        assert set(table[State.CLOSED].values()) == {State.CLOSED}

    @pytest.mark.parametrize("state", State)
    @pytest.mark.parametrize("step", [Step.DATA, Step.END, Step.SEND, Step.CLOSE])
    @pytest.mark.parametrize(("kind", "table"), [(ServerConnection, SERVER), (ClientConnection, CLIENT)])
    def test_the_owners_steps(
        self,
        kind: type[ServerConnection | ClientConnection],
        table: dict[State, dict[Step, State]],
        state: State,
        step: Step,
    ) -> None:
        """In every state, each step of the owner is allowed exactly if the table has it, and leads to the state given
        there."""
        connection = kind()
        request, version, response = CALLS[4]
        sent = ClientConnection().send(request, version)
        if isinstance(connection, ServerConnection):
            connection.receive_data(sent)
            connection.next_event()
        if state in (State.ENDING, State.ENDED):
            connection.receive_data(b"")
        if state is State.ENDED:
            connection.next_event()
        elif state is State.FAILED:
            connection.receive_data(b"\xff" * 8)
            with pytest.raises(RemoteProtocolError):
                connection.next_event()
        elif state is State.CLOSED:
            connection.close()
        assert connection.state is state

        def take() -> None:
            if step is Step.CLOSE:
                connection.close()
            elif step is not Step.SEND:
                connection.receive_data(b"x" if step is Step.DATA else b"")
            elif isinstance(connection, ServerConnection):
                connection.send(response)
            else:
                connection.send(request, version)

        if step in table[state]:
            take()
            assert connection.state is table[state][step]
        else:
            with pytest.raises(LocalProtocolError, match=step.value):
                take()
            assert connection.state is state

    @pytest.mark.parametrize("kind", [ServerConnection, ClientConnection])
    def test_after_close(self, kind: type[ServerConnection | ClientConnection]) -> None:
        """A closed connection refuses all calls except another close."""
        connection = kind()
        connection.receive_data(b"\0")
        connection.close()
        connection.close()
        assert connection.state is State.CLOSED
        assert connection.statistics().bytes_buffered == 0
        with pytest.raises(LocalProtocolError):
            connection.next_event()
        with pytest.raises(LocalProtocolError):
            connection.receive_data(b"x")
        message = (connection, *((CALLS[4][0], 3) if kind is ClientConnection else (CALLS[4][2],)))
        with pytest.raises(LocalProtocolError):
            kind.send(*message)

    @pytest.mark.parametrize("kind", [ServerConnection, ClientConnection])
    def test_data_after_the_end(self, kind: type[ServerConnection | ClientConnection]) -> None:
        """After the end of the stream, more data is refused."""
        connection = kind()
        connection.receive_data(b"")
        for data in (b"x", b""):
            with pytest.raises(LocalProtocolError):
                connection.receive_data(data)
        assert connection.next_event() == ConnectionClosed(())


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(CALLS), min_size=1, max_size=4), st.data())
def test_damaged_streams(calls: list[Call], data: st.DataObject) -> None:
    """A damaged stream gives events or RemoteProtocolError at either end, and no other exception."""
    client, server = ClientConnection(max_frame_bytes=1 << 16), ServerConnection(max_frame_bytes=1 << 16)
    wire = bytearray(b"".join(client.send(request, version) for request, version, _ in calls))
    twin = ServerConnection()
    twin.receive_data(wire)
    for _ in calls:
        twin.next_event()
    back = bytearray(b"".join(joined(twin.send(response)) for _, _, response in calls))
    for end, stream in ((server, wire), (client, back)):
        for _ in range(data.draw(st.integers(1, 3))):
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
        end.receive_data(stream)
        end.receive_data(b"")
        try:
            while not isinstance(event := end.next_event(), ConnectionClosed):
                if isinstance(event, RequestReceived):
                    event.request()
        except RemoteProtocolError:
            continue
        assert end.state is State.ENDED


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 100_000, (1 << 17) + 4, (1 << 17) + 100, 1 << 18, 1 << 20])
def test_large_responses_are_whole_however_they_are_cut(piece: int) -> None:
    """Responses of 128 KiB and more, which are assembled in a separate buffer, are complete for any size of pieces.
    Later responses are not lost."""
    client = ClientConnection()
    sent: list[bytes] = []
    wire = bytearray()
    for number, size in enumerate((1 << 17, 10, (1 << 17) + 1, 3 << 16, 0)):
        client.send(FetchRequest(), 12)
        sent.append(bytes([number + 1]) * size)
        partition = PartitionData(partition_index=0, records=sent[-1])
        body = encode(
            FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])]), 12
        )
        wire += struct.pack(">iib", len(body) + 5, number, 0) + body
    found = []
    # Single bytes are only sent for the beginning of the first frame, to save time.
    starts = [*range(0, 64, piece)] if piece < 64 else [*range(0, len(wire), piece)]
    for at, start in enumerate(starts):
        end = starts[at + 1] if at + 1 < len(starts) else (start + piece if piece >= 64 else len(wire))
        client.receive_data(memoryview(wire)[start:end])
        while isinstance(event := client.next_event(), ResponseReceived):
            assert isinstance(event.response, FetchResponse)
            found.append(bytes(event.response.responses[0].partitions[0].records or b""))
    assert found == sent
