"""The check of rights and logins finds each planted bug. Its own rules are those of KIP-11."""

from __future__ import annotations

import re

import attrs
import pytest

from odradek.security.acls.rules import Acl, Operation, PatternType, Permission, ResourceType
from sim.checks.access import is_allowed
from sim.machine.guards import NODES_LOG_IN
from sim.options import GUARDED_DUTIES, RunOptions
from sim.run import RunResult, run
from tests.mutants.drivers import access_options
from tests.mutants.patching import patched

PLANTED = {
    "right that is gone": (
        "odradek.security.acls.authorizer:Authorizer.apply",
        "        self.generation += 1\n",
        "        self.generation = 1\n",
        "its rules have not allowed it|its rules allow it",
    ),
    "right that is there": (
        "odradek.security.acls.acl_index:permits",
        "or acl.operation == Operation.ALL",
        "or False",
        "is denied, and its rules allow it|False, and its rules say otherwise",
    ),
    "records of a lost right": (
        "odradek.data_plane.handlers.fetching.fetch_job:FetchJob._read",
        "if self.rights is not None and not",
        "if is_first and self.rights is not None and not",
        "READ was lost at",
    ),
    "wrong password": (
        "odradek.security.scram:ScramServer._answer_final",
        "is_right = len(proof) == len(signature) and",
        "is_right = len(proof) == len(signature) or",
        "the login succeeds with a wrong password",
    ),
    "forbidden": (
        "odradek.metadata_quorum.controller_table:EnvelopeHandler.handle",
        "let_in(service, enclosed.sender, enclosed.request",
        "let_in(service, type(enclosed.sender)(context.principal, context.client_address), enclosed.request",
        "which only super users may do",
    ),
}
SEEDS_MAX = 6


def run_access(seed: int) -> RunResult:
    """Run the scenario that concentrates on rights, for a short time."""
    return run(seed, access_options(seed))


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_rule_is_told(name: str) -> None:
    """A bug in one function is found within a few seeds, and the message names the broken rule."""
    function, old, new, told = PLANTED[name]
    with patched(function, old, new):
        messages = (run_access(seed).message for seed in range(SEEDS_MAX))
        message = next(filter(None, messages), "")
    assert re.search(told, message), message


@pytest.mark.long
def test_nodes_that_log_in_to_each_other() -> None:
    """Nodes log in to each other, and logins expire after seconds. The run passes, and the check has seen every kind of
    answer."""
    options = access_options(1)
    shape = attrs.evolve(options.shape, guarded=NODES_LOG_IN)
    result = run(1, attrs.evolve(options, shape=shape))
    assert result.verdict == "ok", result.message
    judged = result.statistics
    assert min(judged[f"access {name}"] for name in ("let in", "denied", "logged in", "login refused")) > 0


def acl(operation: Operation, permission: Permission, name: str, pattern: PatternType) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, "User:u", "*", operation, permission)


def test_judgement() -> None:
    """A denial wins, ALL includes every operation, and names match literally, by prefix, or by `*`."""
    read, every = Operation.READ, Operation.ALL
    allow, deny = Permission.ALLOW, Permission.DENY
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    granted = acl(every, allow, "gu", prefixed)
    assert is_allowed([granted], "User:u", read, "guarded")
    assert not is_allowed([granted], "User:v", read, "guarded")
    assert not is_allowed([granted], "User:u", read, "other")
    assert not is_allowed([granted, acl(read, deny, "guarded", literal)], "User:u", read, "guarded")
    assert is_allowed([acl(read, allow, "*", literal)], "User:u", read, "guarded")
    assert not is_allowed([acl(read, allow, "gu", literal)], "User:u", read, "guarded")
    assert not is_allowed([], "User:u", read, "guarded")


def test_guarded_runs_are_a_share_of_all() -> None:
    """Some seeds have a listener with logins, and some of these also have logins between nodes. Simplified options
    lack it."""
    drawn = [RunOptions.draw(seed, "lite") for seed in range(60)]
    guarded = [each for each in drawn if each.shape.guarded]
    assert 5 <= len(guarded) <= 30
    assert {each.shape.guarded for each in guarded} == {1, 2}
    assert all({*GUARDED_DUTIES} & {*each.duties} for each in guarded)
    by_access = next(each for each in guarded if {*GUARDED_DUTIES} & {*each.duties} == {"access"})
    smaller = dict(by_access.simpler())["duty -access"]
    assert dict(smaller.simpler())["shape guarded"].shape.guarded == 0
