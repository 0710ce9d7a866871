"""Mutants of rights and logins: rules that apply late or never, and logins that last too long."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ACLS = "odradek.security.acls."

MUTANTS_OF_ACCESS: tuple[Mutant, ...] = (
    Mutant(
        "remembered-decision-outlives-the-rule",
        "KIP-801: what a connection remembers of its rights ends with the next change; here it stays.",
        ACLS + "authorizer:Authorizer.apply",
        """
        - self.generation += 1
        + self.generation = 1
        """,
        "access",
        20,
    ),
    Mutant(
        "parked-fetch-keeps-its-right",
        "A fetch that waits when its right is taken is answered with records that came afterwards.",
        "odradek.data_plane.handlers.fetching.fetch_job:FetchJob._read",
        """
        - if self.rights is not None and (not self._may_read(self.rights, fetched)):
        + if is_first and self.rights is not None and (not self._may_read(self.rights, fetched)):
        """,
        "access",
        40,
    ),
    Mutant(
        "prefixed-denial-is-passed-over",
        "KIP-290: a denial wins, whatever kind of name it has; here one for a prefix counts for nothing.",
        ACLS + "acl_index:AclIndex.look_up",
        """
        - if acl.operation in (operation, Operation.ALL):
        + if acl.operation in (operation, Operation.ALL) and acl.pattern_type != PatternType.PREFIXED:
        """,
        "access",
        20,
    ),
    Mutant(
        "envelope-judged-by-its-sender",
        "KIP-590: the controller judges who has asked, and not the broker that passes it on.",
        "odradek.metadata_quorum.controller_table:EnvelopeHandler.handle",
        """
        - service, enclosed.sender, enclose
        + service, type(enclosed.sender)(context.principal, context.client_address), enclose
        """,
        "access",
        20,
    ),
    Mutant(
        "removed-rule-stays-in-the-index",
        "A broker replays that a rule was removed, and its authorizer keeps it.",
        ACLS + "acl_index:AclIndex._group",
        """
        - for acl in gone:
        + for acl in gone[:0]:
        """,
        "access",
        20,
    ),
    Mutant(
        "login-outlives-its-session",
        "KIP-368: a login that may last so long ends when it is not renewed; here it goes on.",
        "odradek.security.sasl_server:Login.refusal",
        """
        - return "the client's login has expired, and the client did not renew it" if self._now() > self.expires_at else ''
        + return ''
        """,
        "access",
        40,
        unseen="our client renews in time, or closes the connection",
    ),
    Mutant(
        "first-password-is-kept",
        "KIP-84: a login is checked against the newest credential; here against the first that the node has seen.",
        "odradek.node.entrances:Entrances.keys_of",
        """
        - self._image().access.scram_credentials.get((user, mechanism
        + self.__dict__.setdefault((user, mechanism), self._image().access.scram_credentials.get((user, mechanism)
        """,
        "access",
        20,
    ),
)
