"""An operator that grants and revokes rights of clients while they work, and changes their passwords. PORTED.

It logs in as a super user, at the listener with authentication. Its clients (`sim.load.operators.guarded_client`) use
the same listener, and each logs in as another user. `sim.checks.access` checks all answers to them. At the end every
broker must have the ACLs that were last acknowledged.
"""

from __future__ import annotations

import attrs

from odradek.client.admin import NewTopic
from odradek.client.admin.admin_acls import AclFilter, create_acls, delete_acls, describe_acls
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Event
from odradek.security.acls.rules import ANY_HOST, Acl, Operation, PatternType, Permission, ResourceType
from odradek.security.scram import ITERATIONS_MIN, MECHANISMS, server_keys
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from sim.load.operators.duty import CALL_SECONDS, Duty, Possible, Site
from sim.load.operators.guarded_client import MECHANISM, GuardedClient, Passwords, secured_client
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from sim.machine.guards import ADMIN, ADMIN_PASSWORD, PLAIN, SASL_PORT

PREFIX = "guarded-"
TOPICS = ("guarded-a", "guarded-b")
PARTITIONS = 2
USERS = ("worker-1", "worker-2")
EVERYTHING = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
REFUSED = (ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.INVALID_REQUEST)
"""Error codes after which certainly nothing was changed."""

__all__ = ["TOPICS", "USERS", "Access"]


class Access(Duty):
    """An operator, with the clients whose rights it changes."""

    calm_seconds_max = 0.5

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._admin: AsyncClient = secured_client(self.load, site.name, ADMIN, ADMIN_PASSWORD, PLAIN)
        self.passwords = Passwords()
        self.topics = TOPICS
        self._rules: dict[Acl, Possible[bool]] = {
            rule: Possible(False)
            for user in USERS
            for permission in (Permission.ALLOW, Permission.ALLOW, Permission.DENY)
            for rule in _rules_of(f"User:{user}", permission)
        }
        self._producing = Producing(self.client.core, ProduceConfig(auto_create=False))
        self._clients: list[GuardedClient] = []
        self._ended: list[Event] = []

    async def setup(self) -> None:
        """Create the topics and users, grant the first rights, and start the clients."""
        configs = {"min.insync.replicas": self.cluster.shape.settings["min.insync.replicas"]}
        wanted = [NewTopic(name, PARTITIONS, self.site.replicas, configs) for name in TOPICS]
        await self.load.create_topics(self.client, wanted, self.load.request_seconds)
        for user in USERS:
            await self.must_hold(lambda user=user: self._credential_wrong(user))  # type: ignore[misc]
            first = Acl(
                ResourceType.TOPIC,
                PREFIX,
                PatternType.PREFIXED,
                f"User:{user}",
                ANY_HOST,
                Operation.ALL,
                Permission.ALLOW,
            )
            await self.must_hold(lambda rule=first: self._grant_wrong(rule))  # type: ignore[misc]
        self._clients = [GuardedClient(self.load, user, TOPICS, PARTITIONS, self.passwords) for user in USERS]
        self._ended = [self.world.spawn(each.run) for each in self._clients]

    async def _credential_wrong(self, user: str) -> str | None:
        await self._set_password(user)
        return None

    async def _grant_wrong(self, rule: Acl) -> str | None:
        await self._change(rule, wanted=True)
        return None

    async def run(self) -> None:
        await super().run()
        for client in self._clients:
            client.is_over = True
        for ended in self._ended:
            await ended.wait()

    async def step(self) -> None:
        draw = self.random.random()
        if draw < 0.8:
            rule = self.random.choice(list(self._rules))
            await self._change(rule, wanted=self.random.random() < 0.5)
            await self._write()
        elif draw < 0.96:
            await self._set_password(self.random.choice(USERS))
        else:
            await self._remove_user(self.random.choice(USERS))

    async def _change(self, rule: Acl, *, wanted: bool) -> None:
        """Create an ACL if `wanted`, or remove it."""
        possible = self._rules[rule]
        try:
            if wanted:
                made = await self._admin.run(create_acls(self._admin.core, [rule], timeout=CALL_SECONDS))
                if (error := made[rule]) is not None:
                    raise error
            else:
                exact = AclFilter(*attrs.astuple(rule))
                await self._admin.run(delete_acls(self._admin.core, [exact], timeout=CALL_SECONDS))
        except KafkaError as error:
            if error.code not in REFUSED:
                possible.ask(wanted)
            raise
        except ClientError:
            possible.ask(wanted)
            raise
        possible.acknowledge(wanted)

    async def _write(self) -> None:
        """Append a record to each partition. A fetch of a user who lost the right during its wait must not return
        this record.
        """
        clock = self.world.node_env(self.site.name).clock
        records = [
            RecordToSend(topic, b"after a change", partition=partition, timestamp_ms=clock.wall_ms())
            for topic in TOPICS
            for partition in range(PARTITIONS)
        ]
        await self.client.run(self._producing.produce(records, timeout=CALL_SECONDS))

    async def _set_password(self, user: str) -> None:
        """Set a new password for a user. The user's client learns the password when the request is acknowledged."""
        password = f"{user}-{self.random.randrange(1 << 32)}"
        salt = self.random.randbytes(16)
        mechanism = MECHANISMS[MECHANISM]
        salted = mechanism.salted_password(password, salt, ITERATIONS_MIN)
        keys = server_keys(mechanism, salted, salt, ITERATIONS_MIN)
        self.passwords.made[keys.stored_key] = password
        upsertion = ScramCredentialUpsertion(user, mechanism.number, ITERATIONS_MIN, salt, salted)
        await self._alter(AlterUserScramCredentialsRequest([], [upsertion]))
        self.passwords.set(user, password)

    async def _remove_user(self, user: str) -> None:
        deletion = ScramCredentialDeletion(user, MECHANISMS[MECHANISM].number)
        await self._alter(AlterUserScramCredentialsRequest([deletion], []))

    async def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        answer: AlterUserScramCredentialsResponse = await self._admin.request(
            request, timeout_ms=int(CALL_SECONDS * 1000)
        )
        for result in answer.results:
            if result.error_code:
                raise KafkaError(ErrorCode(result.error_code), result.user)

    async def check(self) -> None:
        """Check that each broker has the ACLs that were last acknowledged. Raises `SafetyViolation`."""
        await self.must_hold(self._wrong)
        for client in self._clients:
            client.close()
        self._admin.close()

    async def _wrong(self) -> str | None:
        """Describe the first broker whose ACLs differ from the acknowledged ACLs; None if there is no such broker."""
        for member in self.cluster.brokers:
            client = secured_client(
                self.load, self.site.name, ADMIN, ADMIN_PASSWORD, PLAIN, [(member.name, SASL_PORT)]
            )
            try:
                there = set(await client.run(describe_acls(client.core, EVERYTHING, timeout=CALL_SECONDS)))
            finally:
                client.close()
            for rule, possible in self._rules.items():
                if not possible.allows(rule in there):
                    return f"{member.name} {'has' if rule in there else 'lacks'} {rule}, acknowledged was {possible}"
        return None


def _rules_of(principal: str, permission: Permission) -> list[Acl]:
    """List the ACLs that apply to the topics of this workload: for each operation, with literal and with prefixed
    names.
    """
    found = []
    for operation in (Operation.READ, Operation.WRITE, Operation.ALL):
        names = [(name, PatternType.LITERAL) for name in TOPICS]
        names += [(PREFIX, PatternType.PREFIXED)]
        found += [
            Acl(ResourceType.TOPIC, name, pattern, principal, ANY_HOST, operation, permission)
            for name, pattern in names
        ]
    return found
