"""Makes, divides and joins the requests and answers of APIs, as the rows of `anatomy_rows` describe them.
PURE.

Theory of operation
-------------------
A *thing* is an item of a request that gets its own result, for example a partition. At the first call,
`anatomy(api_key, version)` looks up the fields that a row names in the message classes. It generates small
functions from the row, as the codecs do. They make the results of refused things, and the elements of the
answer that contain these results. Code that divides requests or joins answers uses these methods:

* `heads` returns the elements of the outermost lists (topics, groups), for access checks and quotas.
  `without` removes some heads from a request, and returns a function that adds their refusals to the answer.
* `leaves` returns the innermost things (partitions), for requests that are decided in parts. `part` makes a
  request with some of the leaves. `join` makes one answer from the answers to all parts.
* `asking` makes a request from the names of things. `named_results` reads names and results from an answer.
  Clients use these two.
* `refuse` makes an answer that refuses the whole request with one error. `refuse_each` makes an answer that
  repeats the error for each thing.

No function here changes a request. The things in a part are the same objects as in the original request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, compress, groupby, islice, pairwise, takewhile
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

import attrs

from odradek.wire.api import request_class, response_class
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy_rows import ROWS, Row
from odradek.wire.structure import Message, Structure, WireField, version_range

__all__ = ["Anatomy", "Leaf", "anatomy", "anatomy_of", "refuse"]

Make: TypeAlias = Callable[..., Any]
_SCALAR = "*"


class Leaf(NamedTuple):
    """An element of the innermost list of a request, for example a partition in a topic."""

    value: Any
    path: tuple[int, ...]
    """The position of each element that contains this leaf, within that element's list. The position in the
    outermost list comes first.
    """
    outer: Any
    """The element that holds the innermost list, for example the topic; the request itself if there is only
    one level.
    """


@attrs.frozen
class _Level:
    """A list in the request, and the corresponding list in the answer. The answer has one result for each
    element of the request's list.
    """

    field: str
    names: tuple[str, ...]
    element: type
    """The class of the list's elements: a structure, or `str` or `int` for plain values."""
    result_field: str
    result_class: type[Structure]
    result_names: tuple[str, ...]

    def arguments(self, thing: str) -> dict[str, str]:
        """Write the source of the arguments that set the names of a result. They are copied from the element
        in the variable `thing`.
        """
        pairs = zip(self.result_names, self.names, strict=False)
        return {to: thing if name == _SCALAR else f"{thing}.{name}" for to, name in pairs}


class Anatomy:
    """The structure of one API's requests and answers at one version. `anatomy` makes this object. All
    callers share it, because it never changes.
    """

    __slots__ = (
        "_has_once_heads",
        "_heads",
        "_levels",
        "_make_around",
        "_make_refused",
        "_make_result",
        "_make_whole",
        "_names",
        "_response",
        "by_id",
        "has_whole_error",
        "row",
        "within",
    )

    def __init__(self, row: Row, request: type[Structure], response: type[Structure], version: int) -> None:
        self.row = row
        self._response = response
        self.by_id = row.ids_since is not None and version >= row.ids_since
        """True if topics are named by their ids in this version."""
        self.has_whole_error = _travels(response, "error_code", version)
        """True if the answer has a field `error_code` of its own, which can refuse the whole request."""
        paths = [path.strip() for path in row.things.split("+")] if row.things else []
        self._levels = [_levels(path, row.results, request, response) for path in paths]
        self._heads = [levels[0].field for levels in self._levels]
        every = [level for levels in self._levels for level in levels if level.names]
        self._names = {level.element: _namer(level.names[0]) for level in every}
        self._make_result = {levels[-1].element: _result_maker(levels[-1], row) for levels in self._levels}
        self._make_refused = {levels[0].element: self._refusing(levels) for levels in self._levels}
        self._make_around = [_around_maker(*pair) for pair in pairwise(self._levels[0])] if paths else []
        self._has_once_heads = row.once and not self._make_around
        refuses_whole = self.has_whole_error or (
            not paths and _wire_field(response, "error_code") is not None
        )
        self._make_whole = _whole_maker(response, row) if refuses_whole else None
        self.within: Anatomy | None = None
        """The anatomy of a single outermost element, for example of one group with its topics. None if the
        row does not describe it.
        """
        if row.within is not None:
            head = self._levels[0][0]
            self.within = Anatomy(row.within, head.element, head.result_class, version)

    # -- the outermost things ---------------------------------------------------------------------------------

    def heads(self, request: Any) -> list[Any]:
        """List the elements of the request's outermost lists, one list after the other. A null list counts as
        empty.
        """
        if len(self._heads) == 1:
            return getattr(request, self._heads[0]) or []
        return [each for field in self._heads for each in getattr(request, field) or ()]

    def only(self, request: Any, kept: Sequence[object]) -> Any:
        """Make a copy of the request with only some of its outermost elements. `kept` has a true value for
        each element that stays, in the order of `heads`.
        """
        flags = iter(kept)
        changes = {}
        for field in self._heads:
            values = getattr(request, field)
            if values is not None:
                changes[field] = list(compress(values, islice(flags, len(values))))
        return attrs.evolve(request, **changes)

    def refused(self, head: Any, code: ErrorCode, text: str | None = None) -> Any:
        """Make the result of an outermost element. Each thing in the element gets the error `code`."""
        return self._make_refused[type(head)]([head], code, text)[0]

    def without(
        self,
        request: Any,
        codes: Sequence[ErrorCode],
        text: Callable[[Any, ErrorCode], str | None] | None = None,
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Divide a request: `codes` has an error code or NONE for each of its `heads`.

        Returns a request without the heads that have an error, and a function. The function adds the refusals
        of these heads to the answer. `text` makes the error text of a head from the head and its code.
        """
        pairs = [*compress(zip(self.heads(request), codes, strict=True), codes)]
        if self._has_once_heads:
            pairs = _first_of_each(pairs, lambda pair: self.name_of(pair[0]))
        refused = [
            self.refused(head, code, None if text is None else text(head, code)) for head, code in pairs
        ]
        kept = [not code for code in codes]
        return self.only(request, kept), self.adding(kept, refused)

    def adding(self, kept: Sequence[object], refused: Sequence[Any]) -> Callable[[Any], Any]:
        """Return a function that adds the results of refused heads to the answer for the kept heads.

        An answer that refuses the whole request is not changed.
        """
        field, place = self._levels[0][0].result_field, self.row.place

        def add(response: Any) -> Any:
            if self.has_whole_error and response.error_code:
                return response
            found = getattr(response, field)
            if place == "in place":
                answered, others = iter(found), iter(refused)
                setattr(response, field, [next(answered if is_kept else others) for is_kept in kept])
            else:
                setattr(response, field, [*refused, *found] if place == "before" else [*found, *refused])
            return response

        return add

    def name_of(self, thing: Any) -> Any:
        """Return the first name of an element, for example the name of its topic, group or user."""
        return self._names[type(thing)](thing)

    # -- answers about the whole request ----------------------------------------------------------------------

    def refuse(self, request: Any, code: ErrorCode, text: str | None = None) -> Any:
        """Make the answer that refuses the whole request with one error, in the form of this version.

        If this version has no field for the error, the answer is empty. This is so for DescribeLogDirs before
        version 3.
        """
        if self._make_whole is None:
            return self.refuse_each(request, code, text)
        response = self._make_whole(request, code, text)
        if self.row.each:
            setattr(response, self._levels[0][0].result_field, self._each_refused(request, code, text))
        return response

    def refuse_each(self, request: Any, code: ErrorCode, text: str | None = None) -> Any:
        """Make the answer that repeats one error for each thing of the request."""
        field = self._levels[0][0].result_field
        return self._response(**{field: self._each_refused(request, code, text)})

    def _each_refused(self, request: Any, code: ErrorCode, text: str | None) -> list[Any]:
        heads = self.heads(request)
        if self._has_once_heads:
            heads = _first_of_each(heads, self.name_of)
        pieces = (self._make_refused[kind](some, code, text) for kind, some in groupby(heads, type))
        return [*chain.from_iterable(pieces)]

    def _refusing(self, levels: Sequence[_Level]) -> Make:
        """Make a function (heads, code, text) that returns a list of the heads' results. All things in them
        have the error `code`.
        """
        given = {self.row.code: "code"} | _given(self.row.refused, levels[-1].result_class)
        for depth in reversed(range(len(levels))):
            level, thing = levels[depth], f"thing{depth}"
            source = f"thing{depth - 1}.{level.field}" if depth else "things"
            if self.row.once and level is levels[-1] and depth:
                source = f"once({source}, name_of)"
            made = _call(f"Result{depth}", level.result_class, level.arguments(thing) | given)
            text = f"[{made} for {thing} in {source}]"
            given = {level.result_field: text}
        classes = {f"Result{depth}": level.result_class for depth, level in enumerate(levels)}
        return _compiled(
            f"lambda things, code, text: {text}", once=_first_of_each, name_of=self.name_of, **classes
        )

    # -- things and their results, one by one -----------------------------------------------------------------

    def result(self, thing: Any, code: ErrorCode) -> Any:
        """Make the result of an innermost thing (for example a partition) with this error."""
        return self._make_result[type(thing)](thing, code, None)

    def around(self, head: Any, results: list[Any]) -> Any:
        """Make the result of an outermost element. `results` are the results of the things in this element."""
        return self._make_around[0](head, results)

    def asking(
        self, request: Any, names: Iterable[Sequence[Any]], thing: Callable[[Any], Any] = itemgetter(-1)
    ) -> Any:
        """Make a copy of the request that names exactly these things. Each name in `names` is a tuple, which
        begins with the name of the outermost element (e.g. the topic).

        `thing` is a function that makes a thing from its tuple. By default, the last part of the tuple is the
        thing. The outermost elements are in the order in which `names` first mentions them.
        """
        outer, inner = self._levels[0]
        within: dict[Any, list[Any]] = {}
        for each in names:
            within.setdefault(each[0], []).append(thing(each))
        elements = [
            outer.element(**{outer.names[0]: name, inner.field: things}) for name, things in within.items()
        ]
        return attrs.evolve(request, **{outer.field: elements})

    def named_results(self, outer: Any, names: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield (names, result) for each innermost thing of an answer. `names` is a tuple; the name of the
        outermost element comes first.
        """
        level = self._levels[0][len(names)]
        for result in getattr(outer, level.result_field):
            path = (*names, getattr(result, level.result_names[0]))
            if len(path) == len(self._levels[0]):
                yield path, result
            else:
                yield from self.named_results(result, path)

    # -- the innermost things, for requests that are decided in parts -----------------------------------------

    def leaves(self, request: Any) -> list[Leaf]:
        """List the innermost things of the request, in its order."""
        return [leaf for levels in self._levels for leaf in _leaves(request, levels, ())]

    def sizes(self, request: Any) -> Iterator[int]:
        """Yield the lengths of all lists of things in the request, the outermost first. Each list is counted
        only when the caller asks for its length.
        """
        for levels in self._levels:
            yield from _sizes(request, levels)

    def part(self, request: Any, leaves: Iterable[Leaf]) -> Any:
        """Make a request with only these leaves, in the order of the original request."""
        if len(self._levels) == 1:
            return self._narrowed(request, leaves, 0)
        named: dict[str, list[Any]] = {
            levels[0].field: [leaf.value for leaf in leaves if isinstance(leaf.value, levels[0].element)]
            for levels in self._levels
        }
        return attrs.evolve(request, **named)

    def _narrowed(self, outer: Any, leaves: Iterable[Leaf], depth: int) -> Any:
        levels = self._levels[0]
        field = levels[depth].field
        if depth == len(levels) - 1:
            return attrs.evolve(outer, **{field: [leaf.value for leaf in leaves]})
        values = getattr(outer, field)
        within = groupby(leaves, lambda leaf: leaf.path[depth])
        some = [self._narrowed(values[number], those, depth + 1) for number, those in within]
        return attrs.evolve(outer, **{field: some})

    def join(
        self,
        request: Any,
        numbers: Sequence[Sequence[int]],
        responses: Sequence[Any],
        ready: Sequence[Any] = (),
    ) -> Any:
        """Make one answer from `responses`, the answers to all parts of a request. For each part, `numbers`
        has the positions of the part's things in the request.

        `ready` are results that are added at the end, for things that are in no part. If the row puts refused
        things apart (`Row.place`), an answer may have fewer results than its part has things.

        If one part is refused as a whole, its answer becomes the whole answer. But if such a refusal also
        names each thing (`Row.each`), all answers are joined.
        """
        first = responses[0]
        if self.has_whole_error:
            first = next((response for response in responses if response.error_code), first)
            if first.error_code and not self.row.each:
                return first
        found = [list(self._results(response, 0)) for response in responses]
        if self.row.place == "in place" or self._make_around:
            results = self._nested(request, iter(_in_order(numbers, found)), 0)
        else:
            results = [result for some in found for result in some]
        joined = attrs.evolve(first, **{self._levels[0][0].result_field: [*results, *ready]})
        if hasattr(first, "throttle_time_ms"):
            joined.throttle_time_ms = max(response.throttle_time_ms for response in responses)
        return joined

    def _results(self, outer: Any, depth: int) -> Iterable[Any]:
        """List the results of the innermost things in `outer`. At depth 0, `outer` is the whole answer; at a
        greater depth, it is an element of the answer at that level.
        """
        levels = self._levels[0]
        values: list[Any] = getattr(outer, levels[depth].result_field)
        if depth == len(levels) - 1:
            return values
        return chain.from_iterable(self._results(value, depth + 1) for value in values)

    def _nested(self, outer: Any, results: Iterator[Any], depth: int) -> list[Any]:
        """Make the results of the elements of `outer`, which is the request or one of its elements. `results`
        are the results of the innermost things, in the order of the request.
        """
        levels = self._levels[0]
        values = getattr(outer, levels[depth].field) or ()
        if depth == len(levels) - 1:
            return list(islice(results, len(values)))
        around = self._make_around[depth]
        return [around(value, self._nested(value, results, depth + 1)) for value in values]


def anatomy_of(request: Message, version: int | None = None) -> Anatomy:
    """Return the anatomy of a request's API, by default at the newest version.

    The default is correct for an API with one row for all versions, since the encoder drops fields that an
    older version lacks.
    """
    assert request.API_KEY is not None
    return _newest_anatomy(request.API_KEY) if version is None else anatomy(request.API_KEY, version)


@cache
def _newest_anatomy(api_key: int) -> Anatomy:
    assert len(ROWS.get(ApiKey(api_key), (Row(),))) == 1, "its anatomy depends on the version"
    return anatomy(api_key, request_class(api_key).VALID_VERSIONS[1])


def refuse(request: Message, code: ErrorCode, text: str | None = None) -> Any:
    """Make the answer that refuses the whole request with one error. The API must have one row for all
    versions.
    """
    return anatomy_of(request).refuse(request, code, text)


@cache
def anatomy(api_key: int, version: int) -> Anatomy:
    """Return the anatomy of an API at a version. The first call for an API imports its message classes."""
    rows = ROWS.get(ApiKey(api_key), (Row(),))
    row = next(row for row in reversed(rows) if row.since <= version)
    return Anatomy(row, request_class(api_key), response_class(api_key), version)


def _leaves(outer: Any, levels: Sequence[_Level], path: tuple[int, ...]) -> Iterable[Leaf]:
    values = getattr(outer, levels[len(path)].field) or ()
    if len(path) == len(levels) - 1:
        return [Leaf(value, path, outer) for value in values]
    return chain.from_iterable(_leaves(value, levels, (*path, number)) for number, value in enumerate(values))


def _sizes(outer: Any, levels: Sequence[_Level]) -> Iterator[int]:
    values = getattr(outer, levels[0].field) or ()
    yield len(values)
    if len(levels) > 1:
        for value in values:
            yield from _sizes(value, levels[1:])


def _first_of_each(things: Iterable[Any], name_of: Callable[[Any], Any]) -> list[Any]:
    """Return the things without repetitions: of several things with the same name, only the first stays."""
    first: dict[Any, Any] = {}
    for thing in things:
        first.setdefault(name_of(thing), thing)
    return list(first.values())


def _in_order(numbers: Sequence[Sequence[int]], found: Iterable[Sequence[Any]]) -> list[Any]:
    """Return all results of `found`, sorted by their positions. `numbers` has the position of each result."""
    placed = [
        pair for group, some in zip(numbers, found, strict=True) for pair in zip(group, some, strict=True)
    ]
    placed.sort(key=itemgetter(0))
    return [result for _, result in placed]


# -- resolving ------------------------------------------------------------------------------------------------


def _wire_field(cls: type[Structure], name: str) -> WireField | None:
    found = next((each for each in cls.__attrs_attrs__ if each.name == name), None)
    return None if found is None else found.metadata["kafka"]


def _travels(cls: type[Structure], name: str, version: int) -> bool:
    field = _wire_field(cls, name)
    if field is None:
        return False
    first, last = version_range(field.versions)
    return first <= version <= last


def _element(cls: type[Structure], field: str) -> type:
    """Return the class of the elements of a list field: a structure, or `str` or `int` for plain values."""
    found = _wire_field(cls, field)
    assert found is not None, f"{cls.__name__} has no field {field}"
    assert not isinstance(found.type, (str, type)), f"{cls.__name__}.{field} is no list"
    kind = found.type[0]
    if isinstance(kind, str):
        return str if kind == "string" else int
    return kind


def _levels(things: str, results: str, request: type, response: type) -> list[_Level]:
    """Build the levels that the paths `things` and `results` describe. Checks that the message classes have
    the fields of each level.
    """
    levels = []
    steps, result_steps = things.split("/"), results.split("/")
    assert len(steps) == len(result_steps), f"{things} and {results} have different levels"
    for step, result_step in zip(steps, result_steps, strict=True):
        field, *names = step.split()
        result_field, *result_names = result_step.split()
        element, result_class = _element(request, field), _element(response, result_field)
        for cls, some in ((element, names), (result_class, result_names)):
            unknown = [name for name in some if name != _SCALAR and _wire_field(cls, name) is None]
            assert not unknown, f"{cls.__name__} has no field {unknown[0]}"
        levels.append(_Level(field, tuple(names), element, result_field, result_class, tuple(result_names)))
        request, response = element, result_class
    return levels


def _compiled(text: str, **names: object) -> Make:
    made: Make = eval(text, names)
    return made


def _namer(name: str) -> Callable[[Any], Any]:
    """Make a function that returns the name of a thing. This is the thing's field `name`; for a plain value,
    it is the thing itself.
    """
    return (lambda thing: thing) if name == _SCALAR else attrgetter(name)


def _result_maker(level: _Level, row: Row) -> Make:
    """Make a function (thing, code, text) that returns the thing's result with this error."""
    given = level.arguments("thing") | {row.code: "code"} | _given(row.refused, level.result_class)
    made = _call("Result", level.result_class, given)
    return _compiled(f"lambda thing, code, text: {made}", Result=level.result_class)


def _around_maker(level: _Level, inner: _Level) -> Make:
    """Make a function (element, inner results) that returns the element's result. This result contains the
    inner results.
    """
    given = level.arguments("thing") | {inner.result_field: "within"}
    made = _call("Result", level.result_class, given)
    return _compiled(f"lambda thing, within: {made}", Result=level.result_class)


def _whole_maker(response: type[Structure], row: Row) -> Make:
    """Make a function (request, code, text) that returns the answer that refuses the whole request."""
    words = row.whole
    if _wire_field(response, "error_message") is not None and "error_message=" not in words:
        words += " error_message"
    made = _call("Result", response, {"error_code": "code"} | _given(words, response))
    return _compiled(f"lambda thing, code, text: {made}", Result=response)


def _given(words: str, cls: type[Structure]) -> dict[str, str]:
    """Write the source of the arguments for the further fields that a row lists. Each word of `words` has one
    of three forms. `name=value` sets a value, and `name=*` copies the field of that name from the request.
    `name` alone is the field for the error text.
    """
    arguments = {}
    for word in words.split():
        name, has_value, value = word.partition("=")
        field = _wire_field(cls, name)
        assert field is not None, f"{cls.__name__} has no field {name}"
        if not has_value:
            value = "text" if field.nullable else "text or ''"
        arguments[name] = f"thing.{name}" if value == _SCALAR else value
    return arguments


def _call(name: str, cls: type[Structure], arguments: Mapping[str, str]) -> str:
    """Write the source of a call that makes a structure. Uses positional arguments where possible, which take
    half the time of named ones.
    """
    fields = [field.name for field in cls.__attrs_attrs__]
    placed = [arguments[field] for field in takewhile(arguments.__contains__, fields)]
    named = [f"{field}={arguments[field]}" for field in fields[len(placed) :] if field in arguments]
    return f"{name}({', '.join([*placed, *named])})"
