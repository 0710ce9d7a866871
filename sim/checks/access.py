"""Check of authorization: each broker's answers to users must agree with the ACLs and passwords that the broker has
replayed. PURE.

The images of each broker are recorded as it replays them. An answer must agree with an image that the broker had
between the request and the answer. So a right that is removed ends when the broker replays the removal. A new right
holds once the broker has replayed it. Three rules go further:

* A fetch that waited returns no record that was appended after the user had lost READ.
* Requests that only super users may send are always refused to other users, even if a broker forwards such a request
  to the controller.
* A login with a time limit ends when that time is over, unless the login was renewed.

The ACLs are evaluated one by one here, as in KIP-11 and KIP-290, without the product's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from odradek.node.node import Node
from odradek.security.acls.rules import (
    ANY_NAME,
    ANY_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from sim.checks.answers.served_records import end_of
from sim.checks.watched import Hosted, Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

if TYPE_CHECKING:
    from odradek.metadata_quorum.image.access_image import AccessImage
    from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
    from sim.load.operators.guarded_client import Passwords
    from sim.machine.network import SimConn

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Error codes that hide whether the client has the right."""
_ADMITTED = (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)

CALM_SECONDS_MAX = 1.0
"""The longest time in seconds between the first and the last node's replay of a rule, in a run without faults."""

__all__ = ["Access", "is_allowed"]


def is_allowed(rules: Sequence[Acl], principal: str, operation: Operation, topic: str) -> bool:
    """True if the rules grant a principal an operation on a topic: at least one rule allows the operation, and no
    rule denies it.
    """
    found = {
        rule.permission_type
        for rule in rules
        if rule.resource_type == ResourceType.TOPIC
        and rule.principal in (principal, ANY_PRINCIPAL)
        and rule.operation in (operation, Operation.ALL)
        and _is_about(rule, topic)
    }
    return found == {Permission.ALLOW}


def _is_about(rule: Acl, topic: str) -> bool:
    if rule.pattern_type == PatternType.PREFIXED:
        return topic.startswith(rule.resource_name)
    return rule.resource_name in (topic, ANY_NAME)


@attrs.define(eq=False)
class _Replayed:
    """The images of one process, each with the virtual time at which the process began to use it."""

    node: Node
    images: list[tuple[float, AccessImage]] = attrs.Factory(list)
    gone: dict[tuple[str, str], dict[int, int]] = attrs.Factory(dict)
    """For each (user, topic) without READ, the end offset of each partition when the user lost READ."""

    def during(self, since: float) -> list[AccessImage] | None:
        """Return the images that the process used at or after time `since`; None if the first known image is newer than
        `since`.
        """
        if since < self.images[0][0]:
            return None
        first = max(at for at, (began, _) in enumerate(self.images) if began <= since)
        return [image for _, image in self.images[first:]]


@attrs.define(eq=False)
class _Login:
    """The SCRAM login on one connection, as far as it was observed."""

    password: str
    began_at: float
    authenticated_at: float | None = None


class Access:
    """The authorization check for requests of the users that `watch` names."""

    def __init__(self, processes: Processes, session_ms: int) -> None:
        self._processes = processes
        self._world = processes.world
        self._session_seconds = session_ms / 1000
        self._passwords: Passwords | None = None
        self._users: tuple[str, ...] = ()
        self._topics: tuple[str, ...] = ()
        self._replayed: dict[str, _Replayed] = {}
        self._logins: dict[SimConn, _Login] = {}
        self._first_seen: dict[int, float] = {}
        """For each offset of the metadata log, the virtual time at which the first node had replayed it."""
        self.slowest_seconds = 0.0
        """The longest time in seconds from the first replay of an offset to its replay by another node."""
        self.judged = {"let in": 0, "denied": 0, "logged in": 0, "login refused": 0, "lost while waiting": 0}
        """How many answers of each kind were checked."""

    def watch(self, users: Sequence[str], topics: Sequence[str], passwords: Passwords) -> None:
        """Check answers to these users from now on. The machine of each user has the user's name."""
        self._users, self._topics, self._passwords = tuple(users), tuple(topics), passwords

    # --- images

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Record the images of processes that have started since the last call."""
        for member, node in self._processes.living():
            known = self._replayed.get(member.name)
            if (known is None or known.node is not node) and node.metadata is not None:
                fresh = self._replayed[member.name] = _Replayed(node)
                node.metadata.subscribe(lambda image, delta, fresh=fresh: self._replay(fresh, image, delta))  # type: ignore[misc]
                self._see(fresh, node.metadata.committed_image)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Do nothing: answers are checked when they are sent."""

    def must_be_prompt(self) -> None:
        """Check, in a run without faults, that every node has replayed each rule within `CALM_SECONDS_MAX`. Raises
        `SafetyViolation`.
        """
        if self.slowest_seconds > CALM_SECONDS_MAX:
            raise SafetyViolation(
                f"in a run without faults a node replayed a rule {self.slowest_seconds:.3f} s late"
            )

    def _replay(self, process: _Replayed, image: MetadataImage, delta: MetadataDelta) -> None:
        first = self._first_seen.setdefault(image.offset, self._world.now)
        if self._users:
            self.slowest_seconds = max(self.slowest_seconds, self._world.now - first)
        if image.access is not process.images[-1][1]:
            self._see(process, image)

    def _catch_up(self, process: _Replayed) -> None:
        """Record the process's present image at once. Other listeners are notified of a new image before this check.
        They may already have answered requests by that image.
        """
        metadata = process.node.metadata
        if metadata is not None and metadata.committed_image.access is not process.images[-1][1]:
            self._see(process, metadata.committed_image)

    def _see(self, process: _Replayed, image: MetadataImage) -> None:
        process.images.append((self._world.now, image.access))
        rules = list(image.access.acls.values())
        for user in self._users:
            for topic in self._topics:
                key = (user, topic)
                if is_allowed(rules, f"User:{user}", Operation.READ, topic):
                    process.gone.pop(key, None)
                elif key not in process.gone:
                    process.gone[key] = _ends(process.node, topic)

    # --- answers

    def asked(self, exchange: Exchange) -> bool:
        """Record a user's request. Returns False if its sender is not watched."""
        conn = exchange.conn
        if conn.host_name not in self._users or self._passwords is None:
            return False
        exchange.memo = self._world.now
        if exchange.api == ApiKey.SASL_HANDSHAKE:
            password = self._passwords.used[conn.host_name]
            before = self._logins.get(conn)
            self._logins[conn] = _Login(
                password, self._world.now, None if before is None else before.authenticated_at
            )
        return True

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check an answer to a user against the images of its broker. Raises `SafetyViolation`."""
        serving = self._processes.at(exchange.conn.peer)
        if serving is None:
            return
        member, node = serving
        process = self._replayed.get(member.name)
        if process is None or process.node is not node:
            # The images of this process have not been recorded yet, so its answers cannot be checked.
            self._logins.pop(exchange.conn, None)
            return
        self._catch_up(process)
        told = f"{member.name} to {exchange.conn.host_name}"
        if exchange.api == ApiKey.SASL_AUTHENTICATE:
            self._judge_login(process, exchange, answer, told)
        elif exchange.api != ApiKey.SASL_HANDSHAKE:
            self._must_be_logged_in(exchange, told)
        if exchange.api == ApiKey.PRODUCE:
            for topic in answer.responses:
                for part in topic.partition_responses:
                    self._judge(
                        process,
                        exchange,
                        Operation.WRITE,
                        self._name(node, topic.name, topic),
                        part.error_code,
                        told,
                    )
        elif exchange.api == ApiKey.FETCH:
            for topic in answer.responses:
                name = self._name(node, topic.topic, topic)
                for part in topic.partitions:
                    self._judge(process, exchange, Operation.READ, name, part.error_code, told)
                    self._judge_records(process, exchange, name, part, told)
        elif exchange.api in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_ACLS):
            results = answer.topics if exchange.api == ApiKey.CREATE_TOPICS else answer.results
            if any(not each.error_code for each in results):
                raise SafetyViolation(
                    f"{told}: {ApiKey(exchange.api).name} is done, which only super users may do"
                )

    def _name(self, node: Node, name: str, topic: Any) -> str:
        if name or node.broker is None:
            return name
        hosted = node.broker.image.topics_by_id.get(topic.topic_id)
        return "" if hosted is None else hosted.name

    def _judge(
        self,
        process: _Replayed,
        exchange: Exchange,
        operation: Operation,
        topic: str,
        error_code: int,
        told: str,
    ) -> None:
        images = process.during(exchange.memo)
        if images is None or topic not in self._topics or error_code in _UNKNOWN:
            return
        principal = f"User:{exchange.conn.host_name}"
        could = [is_allowed(list(each.acls.values()), principal, operation, topic) for each in images]
        if error_code == _DENIED:
            self.judged["denied"] += 1
            if all(could):
                raise SafetyViolation(
                    f"{told}: {operation.name} of {topic} is denied, and its rules allow it"
                )
        elif error_code in _ADMITTED:
            self.judged["let in"] += 1
            if not any(could):
                raise SafetyViolation(
                    f"{told}: {operation.name} of {topic} is done, and its rules have not allowed it since the request"
                )

    def _judge_records(
        self, process: _Replayed, exchange: Exchange, topic: str, part: Any, told: str
    ) -> None:
        """Check that the answer has no record that was appended after the user had lost READ."""
        gone = process.gone.get((exchange.conn.host_name, topic))
        if gone is None:
            return
        self.judged["lost while waiting"] += 1
        ended = gone.get(part.partition_index)
        end_offset = end_of(part.records)
        if ended is not None and end_offset > ended:
            raise SafetyViolation(
                f"{told}: {topic}-{part.partition_index} is served to {end_offset}; READ was lost at {ended}"
            )

    def _judge_login(self, process: _Replayed, exchange: Exchange, answer: Any, told: str) -> None:
        login = self._logins.get(exchange.conn)
        assert self._passwords is not None
        is_final = b",p=" in bytes(exchange.request.auth_bytes)
        if login is None or not is_final:
            return
        images = process.during(login.began_at)
        if not answer.error_code:
            login.authenticated_at = self._world.now
        if images is None:
            return
        made = self._passwords.made
        user = exchange.conn.host_name
        known = [each.scram_credentials.get((user, 1)) for each in images]
        right = [each is not None and made.get(each.stored_key) == login.password for each in known]
        self.judged["login refused" if answer.error_code else "logged in"] += 1
        if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and all(right):
            raise SafetyViolation(f"{told}: the login is refused, although its password is right")
        if not answer.error_code and not any(right):
            raise SafetyViolation(f"{told}: the login succeeds with a wrong password")

    def _must_be_logged_in(self, exchange: Exchange, told: str) -> None:
        login = self._logins.get(exchange.conn)
        if login is None or exchange.api == ApiKey.API_VERSIONS:
            return
        if login.authenticated_at is None:
            raise SafetyViolation(f"{told}: {ApiKey(exchange.api).name} is served before the login")
        if self._session_seconds and exchange.memo > login.authenticated_at + self._session_seconds:
            raise SafetyViolation(
                f"{told}: {ApiKey(exchange.api).name} is served "
                f"{exchange.memo - login.authenticated_at:.3f} s after the login, which lasts {self._session_seconds} s"
            )

    def statistics(self) -> dict[str, int]:
        return dict(self.judged)


def _ends(node: Node, topic: str) -> dict[int, int]:
    """Return the log end offset of each of a topic's partitions on a broker."""
    hosted = None if node.broker is None else node.broker.topics.get(topic)
    return (
        {}
        if hosted is None
        else {index: each.log.log_end_offset for index, each in hosted.partitions.items()}
    )
