"""The check, by a voter whose address has changed, that no other process runs with a copy of its directory.
PORTED.

Theory of operation
-------------------
A voter with a new address looks like a process with a copy of its directory: neither is at the address in the
log. So it sends a Vote with its own id and directory to the address in the log and to all bootstrap servers.
It takes part once no process has answered as this voter for a fetch timeout. Until then it abstains from
votes, candidacies and fetches (`RaftCore.abstain`). It repeats the check until the log has its address.

The Vote is a pre-vote, which changes nothing at its receiver. Instead of the log's end it contains a random
number. A process that receives its own number has sent the Vote to itself, under another address.

A voter at its address in the log, and the only voter of a quorum, start without this check.
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
"""The most questions under way at once. While the resolver or the answers are so slow, no further check
begins.
"""
VOTERS_WORDS = (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
"""The error codes with which a voter answers a Vote that names it."""


class OwnCopy:
    """The check whether another process runs with this voter's directory."""

    def __init__(self, driver: QuorumDriver, search: VoterSearch, places: VoterPlaces) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._search = search
        self._places = places
        self._logged: Place | None = None
        """The place that the log has for this voter; None if this process is there, so that no check is
        needed.
        """
        self._judged: tuple[VoterSet, bool] | None = None
        """The voters, and whether this node led, at the last call of `judge`."""
        self._numbers: dict[int, bool] = {}
        """For each question under way, its number and True if this process itself has received it."""
        self.found_at: Place | None = None
        """The place where another process last answered as this voter; None if there is none."""
        self._alone_since = 0.0
        """The time, in monotonic seconds, since which no other process has answered as this voter."""
        self._is_here = False
        """True once a question to the place in the log has reached this process itself."""

    def judge(self) -> None:
        """Start to abstain and to check for a copy if the log has another address for this voter; stop when
        the log has its address. Called after changes.
        """
        driver = self._driver
        voters, leads = driver.core.voters, isinstance(driver.core.role, Leader)
        if self._judged is not None and self._judged[0] is voters and self._judged[1] is leads:
            return
        self._judged = voters, leads
        # A leader has won an election as this voter, and writes its own address first.
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
        """Return the place that the log has for this voter, if it is not one of this process's endpoints;
        otherwise None.
        """
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
        """Check for a copy repeatedly, while the log has this place for the voter.

        Each check begins on time, even if the previous one is not answered, so that lost messages delay
        nothing.
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
        """Stop abstaining if no other process has answered as this voter for a fetch timeout.

        If a question to the place in the log has reached this process, and no copy was found, the voter need
        not wait.
        """
        now, window = self._driver.clock.monotonic(), self._settings.raft.fetch_timeout_seconds
        if now - self._alone_since >= window or (self._is_here and self.found_at is None):
            self.found_at = None
            self._driver.report(self._driver.core.abstain, False)

    async def _look(self, logged: Place) -> None:
        """Send a question to the place in the log and to all bootstrap servers, all at once."""
        if len(self._numbers) >= QUESTIONS_MAX:
            return
        self._driver.start_soon(self._ask, logged, logged)
        await self._search.resolve(logged.host, logged.port)
        for place in await self._search.bootstrap_places():
            if not self._places.is_same(place, logged):
                self._driver.start_soon(self._ask, place, logged)

    async def _ask(self, place: Place, logged: Place) -> None:
        """Send a pre-vote request to one place; note whether this process or a copy of its directory answers.

        The wait is at most one fetch timeout.
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
        """Log that a copy answers at this place, unless this place was logged last."""
        if found != self.found_at:
            here = "{1}:{2}".format(*self._settings.endpoints[0])
            self._driver.logger.error(
                "quorum.copied_directory",
                voter=self._settings.me.node_id,
                reason=f"this voter listens at {here}, and a process with the same directory id answers "
                f"at {found}: one of the two directories is a copy. Stop the node that runs on the "
                "copy, for good",
            )
        self.found_at = found


def _is_a_voters(outcome: Outcome) -> bool:
    return outcome.response is not None and outcome.response.error in VOTERS_WORDS
