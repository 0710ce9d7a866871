"""The controller's decisions about ACLs: records, refusals, and limits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from odradek.metadata_quorum.controller.access.acls import COMPARED_PER_REQUEST_MAX, create_acls, delete_acls
from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

READ, ALLOW = 3, 3


class Decider:
    """A controller whose image has only ACLs."""

    def __init__(self, *, has_authorizer: bool = True) -> None:
        self.image = MetadataImage.empty("cluster")
        self.delta = MetadataDelta()
        self._basis = DecisionBasis(ControllerSettings(has_authorizer=has_authorizer), BrokerSessions(9_000))
        self._random = Random(7)

    def decide(self, request: Any) -> Decision:
        """Decide a request, and replay the records."""
        context = DecisionContext(0, 3, 0, 1, self._random, lambda: self._random.randbytes(16))
        function = create_acls if isinstance(request, CreateAclsRequest) else delete_acls
        decision = function(self.image, request, context, self._basis)
        builder = ImageBuilder(self.image)
        for offset, record in enumerate(decision.records):
            builder.replay(offset, record, 1)
        self.image, self.delta = builder.build()
        return decision


def create(*names: str) -> CreateAclsRequest:
    """Make a request that allows User:a to read each topic."""
    return CreateAclsRequest([AclCreation(2, name, 3, "User:a", "*", READ, ALLOW) for name in names])


def delete(*names: str | None) -> DeleteAclsRequest:
    """Make a request that deletes all ACLs about each name, or about any name (None)."""
    return DeleteAclsRequest([DeleteAclsFilter(1, name, 1, None, None, 1, 1) for name in names])


def test_an_acl_is_written_once() -> None:
    """An ACL is created twice, in one request or in two. Both creations succeed, and one record is written."""
    decider = Decider()
    assert len(decider.decide(create("t", "t", "u")).records) == 2
    assert len(decider.delta.changed_acls) == 2
    again = decider.decide(create("u", "t"))
    assert ([each.error_code for each in again.response.results], len(again.records)) == ([0, 0], 0)
    assert set(decider.image.access.acl_ids) == set(decider.image.access.acls.values())


def test_an_acl_goes_with_the_first_filter_that_means_it() -> None:
    """Several filters match an ACL. The answer lists it under the first filter. It can then be created again."""
    decider = Decider()
    decider.decide(create("t", "u"))
    gone = decider.decide(delete("t", None, "t"))
    assert [len(each.matching_acls) for each in gone.response.filter_results] == [1, 1, 0]
    assert not decider.image.access.acls
    assert not decider.image.access.acl_ids
    assert len(decider.decide(create("t")).records) == 1


def test_an_exact_filter_finds_its_acl_without_a_search() -> None:
    """A filter that names all parts of an ACL matches only this ACL. The same ACL of another principal stays."""
    decider = Decider()
    decider.decide(create("t"))
    other = DeleteAclsFilter(2, "t", 3, "User:b", "*", READ, ALLOW)
    mine = DeleteAclsFilter(2, "t", 3, "User:a", "*", READ, ALLOW)
    gone = decider.decide(DeleteAclsRequest([other, mine]))
    assert [len(each.matching_acls) for each in gone.response.filter_results] == [0, 1]


def test_too_much_is_refused_as_a_whole() -> None:
    """A request about too many ACLs is refused as a whole with POLICY_VIOLATION, and nothing is written."""
    decider = Decider()
    names = [f"t{number}" for number in range(1_000)]
    decider.decide(create(*names))
    of_nobody = DeleteAclsFilter(1, None, 1, "User:x", None, 1, 1)
    by_name = DeleteAclsFilter(1, "x", 1, None, None, 1, 1)
    for asked, count in ((of_nobody, COMPARED_PER_REQUEST_MAX // len(names) + 1), (by_name, 13_000)):
        too_many = decider.decide(DeleteAclsRequest([asked] * count))
        assert {each.error_code for each in too_many.response.filter_results} == {ErrorCode.POLICY_VIOLATION}
    large = decider.decide(create(*(f"n{number}" for number in range(10_001))))
    assert {each.error_code for each in large.response.results} == {ErrorCode.POLICY_VIOLATION}
    assert len(decider.image.access.acls) == len(names)


@pytest.mark.parametrize("request_of", [lambda: create("t"), lambda: delete("t")])
def test_without_an_authorizer_nobody_makes_rules(request_of: Any) -> None:
    """Changes of ACLs need an authorizer that enforces them. Otherwise they get SECURITY_DISABLED."""
    response = Decider(has_authorizer=False).decide(request_of()).response
    results = getattr(response, "results", None) or response.filter_results
    assert [each.error_code for each in results] == [ErrorCode.SECURITY_DISABLED]
