"""A server that is compared with the corpus, and its answers."""

from __future__ import annotations

import os

import attrs

from odradek.wire.messages.api_versions import ApiVersionsRequest
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient
from tests.conformance.asking.talk import wait_until_ready
from tests.conformance.comparison import differences, load
from tests.conformance.corpus import cases_of, hold


@attrs.define
class Partner:
    """One server, to which the cases of each API are sent once."""

    bootstrap: str
    advertised: dict[int, tuple[int, int]]
    """First and last version of each advertised API, by its key."""
    tag: str = attrs.field(factory=lambda: os.urandom(3).hex())
    asked: set[tuple[int, int]] = attrs.field(factory=set)
    """API key and version of each request sent."""
    _found: dict[str, list[str]] = attrs.field(factory=dict)

    def differences(self, api: str) -> list[str]:
        """Return the differences of one API's answers from the recording, a line each."""
        if api not in self._found:
            recorded = load(api)
            held = hold(self.bootstrap, self.tag, cases_of(api))
            self.asked |= held.asked
            self._found[api] = [
                f"{name}: {difference}"
                for name, given in held.answers.items()
                for difference in differences(recorded[name], given)
            ]
        return self._found[api]


def partner_of(server: ServerProcess) -> Partner:
    """Wait until the server is ready for the corpus, and return it as a `Partner`."""
    wait_until_ready(server.bootstrap)
    with RawClient(server.bootstrap) as client:
        entries = client.request(ApiVersionsRequest("s", "1"), 3).api_keys
    return Partner(
        server.bootstrap, {entry.api_key: (entry.min_version, entry.max_version) for entry in entries}
    )
