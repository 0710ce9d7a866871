"""Requests are split and responses are joined as `ROWS` describes for each API: no name is lost, repeated or misplaced.

The tests interpret the text of a row independently of the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.api import request_class, response_class
from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy import Anatomy, anatomy
from odradek.wire.schema.anatomy_rows import ROWS, Row
from odradek.wire.structure import Message, Structure
from tests.schedule import examples
from tests.wire.message_values import contains
from tests.wire.strategies import structures

ANSWERED = ErrorCode.UNKNOWN_SERVER_ERROR
"""The error code with which these tests mark results from a handler or controller."""
REFUSED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST)
Steps = Sequence[Sequence[str]]
"""For each level of a path: the field that has the list, then the fields that name a list element."""


@attrs.frozen
class Case:
    """A row of `ROWS` with its request and response classes. For an inner row, these are the element classes of the
    outer row."""

    name: str
    row: Row
    versions: range
    request: type[Structure]
    response: type[Structure]

    def anatomy(self, version: int) -> Anatomy:
        """Return the product's anatomy for this row."""
        name, _, within = self.name.partition(" within ")
        found: Anatomy | None = anatomy(ApiKey[name.split()[0]], version)
        if within:
            assert found is not None
            found = found.within
        assert found is not None
        return found

    @property
    def results(self) -> Steps:
        return steps_of(self.row.results)

    @property
    def is_once(self) -> bool:
        """True if a name that is repeated at the outermost level is refused only once."""
        return self.row.once and len(self.results) == 1

    def draw(self, data: st.DataObject) -> tuple[Anatomy, Any, int]:
        """Draw a version and a request; return its anatomy, the request and the version."""
        version = data.draw(st.sampled_from(self.versions), label="version")
        return self.anatomy(version), data.draw(structures(self.request, version), label="request"), version


def steps_of(path: str) -> Steps:
    return [step.split() for step in path.split("/")]


def cases() -> Iterator[Case]:
    """Yield every row of every API with its versions."""
    for api, rows in ROWS.items():
        request, response = request_class(api), response_class(api)
        first, last = request.VALID_VERSIONS
        for row, following in zip(rows, (*rows[1:], None), strict=True):
            end = last if following is None else following.since - 1
            versions = range(max(first, row.since), end + 1)
            if versions:
                yield Case(f"{api.name} {row.since}", row, versions, request, response)
            if row.within is not None:
                outer = anatomy(api, end)._levels[0][0]
                name = f"{api.name} within {outer.field}"
                yield Case(name, row.within, versions, outer.element, outer.result_class)


CASES = list(cases())
over_rows = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
over_things = pytest.mark.parametrize(
    "case", [case for case in CASES if case.row.things], ids=lambda case: case.name
)


def names_in(thing: Any, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(thing if name == "*" else getattr(thing, name) for name in names)


def head_names(case: Case, request: Any) -> list[tuple[Any, ...]]:
    """List the names of the outermost things as the response must have them. If the request has no topic id, it is
    zero."""
    found = []
    for path in case.row.things.split("+"):
        field, *names = steps_of(path)[0]
        missing = (bytes(16),) * (len(case.results[0]) - 1 - len(names))
        found += [names_in(head, names) + missing for head in getattr(request, field) or ()]
    return found


def result_names(case: Case, answer: Any) -> list[tuple[Any, ...]]:
    """List the names of the outermost results."""
    field, *names = case.results[0]
    return [names_in(result, names) for result in getattr(answer, field)]


def innermost(outer: Any, steps: Steps) -> list[Any]:
    """Return the innermost results in a response or a result."""
    if not steps:
        return [outer]
    return [leaf for each in getattr(outer, steps[0][0]) for leaf in innermost(each, steps[1:])]


def elements(outer: Any, steps: Steps, around: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield each element of each list, preceded by its enclosing elements with their lists emptied."""
    for value in getattr(outer, steps[0][0]) or ():
        if len(steps) == 1:
            yield (*around, value)
        else:
            bare = (*around, attrs.evolve(value, **{steps[1][0]: []}))
            yield bare
            yield from elements(value, steps[1:], bare)


def described(case: Case, request: Any) -> list[tuple[Any, ...]]:
    """Return the innermost things of a request, each preceded by its enclosing elements."""
    paths = [steps_of(path) for path in case.row.things.split("+")]
    return [each for steps in paths for each in elements(request, steps) if len(each) == len(steps)]


def has_empty(outer: Any, steps: Steps) -> bool:
    """True if any element at any level has an empty inner list."""
    return len(steps) > 1 and any(
        not getattr(each, steps[1][0]) or has_empty(each, steps[1:]) for each in getattr(outer, steps[0][0])
    )


def first_of_each(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    first: dict[Any, Any] = {}
    for name, value in pairs:
        first.setdefault(name, value)
    return list(first.items())


def check_refused(case: Case, leaves: Sequence[Any], code: ErrorCode, text: str | None) -> None:
    """Check that each innermost result has this code and text, and the field values that the row states for
    refusals."""
    for leaf in leaves:
        assert getattr(leaf, case.row.code) == code
        for word in case.row.refused.split():
            field, has_value, value = word.partition("=")
            found = getattr(leaf, field)
            assert repr(found) == value if has_value else (found or None) == text


def travels(cls: type[Structure], name: str, version: int) -> bool:
    """True if the class has the field in this version."""
    facts = {attribute.name: attribute.metadata["kafka"] for attribute in cls.__attrs_attrs__}
    return name in facts and contains(facts[name].versions, version)


@over_things
@given(data=st.data())
@settings(max_examples=examples(15))
def test_what_goes_in_and_what_is_refused_is_all_that_was_named(case: Case, data: st.DataObject) -> None:
    """Each outermost thing of a request is either kept in it or refused in the response: exactly once, in the right
    order."""
    shape, request, _ = case.draw(data)
    names, before = head_names(case, request), deepcopy(request)
    chosen = st.sampled_from([ErrorCode.NONE, *REFUSED])
    codes = [data.draw(chosen) for _ in names]
    if case.row.once:
        of_name = dict(zip(names, codes, strict=True))
        codes = [of_name[name] for name in names]
    inner, add = shape.without(request, codes, lambda _, code: code.name)
    assert request == before
    left = [head for head, code in zip(shape.heads(request), codes, strict=True) if not code]
    assert all(one is other for one, other in zip(shape.heads(inner), left, strict=True))
    assert any(codes) or inner == request
    answer = add(shape.refuse_each(inner, ANSWERED, "answered"))
    pairs = list(zip(names, codes, strict=True))
    answered = [(name, ANSWERED) for name, code in pairs if not code]
    refused = [(name, code) for name, code in pairs if code]
    if case.is_once:
        answered, refused = first_of_each(answered), first_of_each(refused)
    expected = {
        "behind": answered + refused,
        "before": refused + answered,
        "in place": [(name, code or ANSWERED) for name, code in pairs],
    }[case.row.place]
    assert result_names(case, answer) == [name for name, _ in expected]
    for result, (_, code) in zip(getattr(answer, case.results[0][0]), expected, strict=True):
        leaves = innermost(result, case.results[1:])
        check_refused(case, leaves, code, "answered" if code is ANSWERED else code.name)
    assert case.row.once or len(innermost(answer, case.results)) == len(described(case, request))


@over_rows
@given(data=st.data())
@settings(max_examples=examples(15))
def test_a_refusal_of_the_whole_is_said_once_or_of_each_thing(case: Case, data: st.DataObject) -> None:
    """If a whole request is refused, the error is in the response's top-level field, or in each thing if there is no
    such field. ElectLeaders has both."""
    shape, request, version = case.draw(data)
    code, text = REFUSED[0], data.draw(st.sampled_from([None, "why"]))
    response = shape.refuse(request, code, text)
    is_whole = travels(case.response, "error_code", version)
    if is_whole:
        assert response.error_code == code
        if travels(case.response, "error_message", version) and "error_message=" not in case.row.whole:
            assert (response.error_message or None) == text
    if case.row.things and is_whole and not case.row.each:
        assert result_names(case, response) == []
        changed = shape.without(request, [code] * len(shape.heads(request)))[1](deepcopy(response))
        assert changed == response, "a response that refuses everything must not get more refusals"
    elif case.row.things:
        names = head_names(case, request)
        assert result_names(case, response) == (list(dict.fromkeys(names)) if case.is_once else names)
        leaves = innermost(response, case.results)
        check_refused(case, leaves, code, text)
        assert case.row.once or len(leaves) == len(described(case, request))
    if isinstance(response, Message):
        frame = encode(response, version)
        assert encode(decode(type(response), version, frame), version) == frame


def draw_groups(data: st.DataObject, count: int) -> list[list[int]]:
    """Assign numbers of things to three parts at random. A part may be empty."""
    home = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count), label="parts")
    return [[number for number in range(count) if home[number] == part] for part in range(3)]


@over_things
@given(data=st.data())
@settings(max_examples=examples(15))
def test_parts_name_each_thing_once(case: Case, data: st.DataObject) -> None:
    """The things of a request are distributed over parts. Each part has its things in their order, without empty lists
    around them."""
    shape, request, _ = case.draw(data)
    before, whole, leaves = deepcopy(request), described(case, request), shape.leaves(request)
    assert [leaf.value for leaf in leaves] == [each[-1] for each in whole]
    groups = draw_groups(data, len(leaves))
    parts = [shape.part(request, [leaves[number] for number in group]) for group in groups]
    assert request == before
    for group, part in zip(groups, parts, strict=True):
        assert described(case, part) == [whole[number] for number in group]
        found = [leaf.value for leaf in shape.leaves(part)]
        assert all(one is leaves[number].value for one, number in zip(found, group, strict=True))
        assert not any(has_empty(part, steps_of(path)) for path in case.row.things.split("+"))
    every = [each for path in case.row.things.split("+") for each in elements(request, steps_of(path))]
    assert sum(shape.sizes(request)) == len(every)


def answer_to(case: Case, request: Any, codes: Sequence[int], version: int) -> Any:
    """Make a response with these codes, one for each innermost thing, even if a name is repeated."""
    row = attrs.evolve(case.row, once=False, within=None)
    answer = Anatomy(row, case.request, case.response, version).refuse_each(request, ANSWERED)
    for leaf, code in zip(innermost(answer, case.results), codes, strict=True):
        setattr(leaf, case.row.code, code)
    return answer


@over_things
@given(data=st.data())
@settings(max_examples=examples(15))
def test_the_answers_of_parts_joined_are_the_answer_to_the_whole(case: Case, data: st.DataObject) -> None:
    """The responses to the parts, joined, equal the response to the whole request. If a row moves refusals to one end,
    results follow the parts' order."""
    shape, request, version = case.draw(data)
    leaves = shape.leaves(request)
    groups = draw_groups(data, len(leaves))
    parts = [shape.part(request, [leaves[number] for number in group]) for group in groups]
    answers = [
        answer_to(case, part, [number + 1 for number in group], version)
        for part, group in zip(parts, groups, strict=True)
    ]
    codes = [number + 1 for number in range(len(leaves))]
    expected = answer_to(case, request, codes, version)
    if len(case.results) == 1 and case.row.place != "in place":
        order = [number for group in groups for number in group]
        results = getattr(expected, case.results[0][0])
        setattr(expected, case.results[0][0], [results[number] for number in order])
    if hasattr(expected, "throttle_time_ms"):
        waits = data.draw(st.lists(st.integers(0, 9), min_size=3, max_size=3))
        for answer, wait_ms in zip(answers, waits, strict=True):
            answer.throttle_time_ms = wait_ms
        expected.throttle_time_ms = max(waits)
    if travels(case.response, "error_code", version) and data.draw(st.booleans()):
        refused = data.draw(st.integers(0, 2))
        answers[refused].error_code = REFUSED[0]
        if case.row.each:
            expected.error_code = REFUSED[0]
        else:
            expected = answers[refused]
    assert shape.join(request, groups, answers) == expected


def test_results_that_are_ready_follow_the_others() -> None:
    """Results that need no decision are placed after the results of decisions."""
    shape = anatomy(ApiKey.CREATE_PARTITIONS, 3)
    make, answer = response_class(ApiKey.CREATE_PARTITIONS), request_class(ApiKey.CREATE_PARTITIONS)()
    decided: list[Any] = [make(results=[each]) for each in ("one", "two")]  # type: ignore[call-arg]
    joined = shape.join(answer, [[0], [1]], decided, ["ready"])
    assert joined.results == ["one", "two", "ready"]
