"""A check that no other process runs with a copy of a voter's directory. A voter makes it if its address
differs from its address in the log. PORTED.

Theory of operation
-------------------
A voter that has moved, and a process that runs on a copy of a voter's directory, look alike. Neither is at
the voter's address in the log. So the voter sends a Vote with its own id and directory to the address in the
log and to all bootstrap servers. If no process answers as this voter for one fetch timeout, the voter takes
part in the quorum. Until then it abstains from votes, candidacies and fetches (`RaftCore.abstain`). It
repeats the check until the log has its address.

The Vote is a pre-vote, which changes nothing at its receiver. Instead of the log's end it contains a random
number. If a process receives a Vote with its own number, it has sent this Vote to itself, under another
address.

The check is left out if the voter is at its address in the log, or is the only voter.
"""

from __future__ import annotations

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.messages import Request, Vote
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.asking.voter_places import Place, VoterPlaces
from odradek.metadata_quorum.replica.asking.voter_search import Outcome, VoterSearch
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

__all__ = ["OwnCopy"]

LOOKS_PER_WINDOW = 8
"""The number of checks for a copy in one fetch timeout, so that a few lost messages do not hide a copy."""
NUMBER_BITS = 62
QUESTIONS_MAX = 1000
"""The most questions under way at once. If the resolver or the other nodes answer so slowly that this limit
is reached, no further check begins.
"""
VOTERS_WORDS = (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
"""The error codes with which a voter answers a Vote that names its own id and directory."""


class OwnCopy:
    """The check whether another process runs with this voter's directory."""

    def __init__(self, driver: QuorumDriver, search: VoterSearch, places: VoterPlaces) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._search = search
        self._places = places
        self._logged: Place | None = None
        """The voter's address in the log. None if this process listens at that address, so that no check is
        needed.
        """
        self._judged: tuple[VoterSet, bool] | None = None
        """The facts on which the last call of `judge` was based: the voters, and whether this node was the leader."""
        self._numbers: dict[int, bool] = {}
        """The random number of each question under way, mapped to True if this process itself has received
        the question.
        """
        self.found_at: Place | None = None
        """The place where another process last answered as this voter; None if there is none."""
        self._alone_since = 0.0
        """The beginning of the time in which no other process has answered as this voter, in monotonic
        seconds.
        """
        self._is_here = False
        """True once this process has received its own question through the voter's address in the log."""

    def judge(self) -> None:
        """Called when the voters or the leadership may have changed. If the log names an address where this process
        does not listen, abstain and begin to check for a copy. Otherwise take part again.
        """
        driver = self._driver
        voters, leads = driver.core.voters, isinstance(driver.core.role, Leader)
        if self._judged is not None and self._judged[0] is voters and self._judged[1] is leads:
            return
        self._judged = voters, leads
        # A leader has won an election as this voter, so it need not check for a copy. Its first batch writes
        # its own address to the log.
        logged = None if leads else self._place_in_log(voters)
        if logged == self._logged:
            return
        self._logged = logged
        driver.report(driver.core.abstain, logged is not None)
        if logged is None:
            self.found_at = None
        else:
            driver.start_soon(self._doubt, logged)

    def _place_in_log(self, voters: VoterSet) -> Place | None:
        """Return the voter's address in the log if this process does not listen there. Otherwise return None."""
        me = self._settings.me
        voter = voters.get(me.node_id)
        if voter is None or voter.key != me or not voter.endpoints or not self._settings.endpoints:
            return None
        if not self._driver.has_dynamic_voters or voters.is_only(me):
            return None
        logged = self._settings.chosen(voter.endpoints)
        return None if any(each[1:] == logged for each in self._settings.endpoints) else Place(*logged)

    def note_received(self, request: Request) -> None:
        """Called for each received request, to recognize questions that this process has sent to itself."""
        if isinstance(request, Vote) and request.log_end.offset in self._numbers:
            self._numbers[request.log_end.offset] = True

    async def _doubt(self, logged: Place) -> None:
        """Check for a copy repeatedly, as long as the voter's address in the log is `logged`.

        Each check begins on time, even if the previous one is not answered. So a lost message does not delay
        the next check.
        """
        driver = self._driver
        clock, window = driver.clock, self._settings.raft.fetch_timeout_seconds
        self._alone_since, self._is_here = clock.monotonic(), False
        while self._logged == logged and driver.is_running:
            began = clock.monotonic()
            driver.start_soon(self._look, logged)
            await clock.sleep_until(began + window / LOOKS_PER_WINDOW)
            if self._logged == logged:
                self._take_part_if_alone()

    def _take_part_if_alone(self) -> None:
        """Stop abstaining if no other process has answered as this voter for one fetch timeout.

        The wait is shorter if this process has received its own question through the address in the log, and
        no copy was found.
        """
        now, window = self._driver.clock.monotonic(), self._settings.raft.fetch_timeout_seconds
        if now - self._alone_since >= window or (self._is_here and self.found_at is None):
            self.found_at = None
            self._driver.report(self._driver.core.abstain, False)

    async def _look(self, logged: Place) -> None:
        """Send a question to the voter's address in the log, and to all bootstrap servers, all at once."""
        if len(self._numbers) >= QUESTIONS_MAX:
            return
        self._driver.start_soon(self._ask, logged, logged)
        await self._search.resolve(logged.host, logged.port)
        for place in await self._search.bootstrap_places():
            if not self._places.is_same(place, logged):
                self._driver.start_soon(self._ask, place, logged)

    async def _ask(self, place: Place, logged: Place) -> None:
        """Send a pre-vote request to one place. Record whether this process itself, or a copy of its
        directory, answers there. The wait is at most one fetch timeout.
        """
        number = self._driver.env.random.getrandbits(NUMBER_BITS)
        self._numbers[number] = False
        try:
            question = self._question(number)
            outcome = await self._search.ask(place, question, self._settings.raft.fetch_timeout_seconds)
        finally:
            has_received = self._numbers.pop(number)
        if self._logged != logged:
            return
        if has_received:
            self._is_here = self._is_here or place == logged
        elif _is_a_voters(outcome):
            reached("quorum.own_copy_found")
            self._alone_since = self._driver.clock.monotonic()
            self._log_found(place)
            self._driver.report(self._driver.core.abstain, True)

    def _question(self, number: int) -> Vote:
        core, me = self._driver.core, self._settings.me
        return Vote(core.epoch, me, me, OffsetAndEpoch(number, max(core.log.last_epoch, 0)), pre_vote=True)

    def _log_found(self, found: Place) -> None:
        """Log that a copy answers at this place, unless the last such log line was about the same place."""
        if found != self.found_at:
            here = "{1}:{2}".format(*self._settings.endpoints[0])
            self._driver.logger.error(
                "quorum.copied_directory",
                voter=self._settings.me.node_id,
                reason=f"this voter listens at {here}, but a process with the same directory id answers "
                f"at {found}. One of the two directories is a copy of the other: stop the node that runs "
                "on the copy, and never start it again",
            )
        self.found_at = found


def _is_a_voters(outcome: Outcome) -> bool:
    return outcome.response is not None and outcome.response.error in VOTERS_WORDS
