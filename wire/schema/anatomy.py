"""What a row says of one API at one version, resolved against its message classes. PURE.

Theory of operation
-------------------
`anatomy(api_key, version)` resolves a row once. It makes small functions from it, as the codecs do: one for the result of a
refused thing, one for each level around it. Whatever takes requests apart or puts answers together asks it:

* `heads` are the elements of the outermost lists (topics, groups), for doors and quotas. `without` gives the request
  without some of them, and adds their refusals to its answer.
* `leaves` are the innermost things (partitions), for requests that are decided in parts. `part` names only some of them,
  `join` makes one answer of all parts' answers.
* `asking` makes a request of names, `named_results` reads names and results from an answer. Clients do that.
* `refuse` is the answer to the whole request with one error, `refuse_each` the one that has it once for each thing.

Nothing here changes a request. A part shares its things with the request that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import compress, islice, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import attrs

from odradek.wire.api import request_class, response_class
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy_rows import ROWS, Row
from odradek.wire.structure import Message, Structure, WireField, version_range

__all__ = ["Anatomy", "Leaf", "anatomy", "anatomy_of"]

Make: TypeAlias = Callable[..., Any]
_SCALAR = "*"


class Leaf(NamedTuple):
    """A thing in the innermost list of a request."""

    value: Any
    path: tuple[int, ...]
    """The positions of the elements around it, from the outermost list in."""
    outer: Any
    """The element whose list it is in; the request itself where there is one level."""


@attrs.frozen
class _Level:
    """A list of the request, and the list of the answer that has a result for each of its elements."""

    field: str
    names: tuple[str, ...]
    element: type
    """The class of its elements: a structure, or `str` or `int` for plain values."""
    result_field: str
    result_class: type[Structure]
    result_names: tuple[str, ...]

    def arguments(self) -> str:
        """The arguments of a result that are names, for an element called `thing`."""
        pairs = zip(self.result_names, self.names, strict=False)
        return "".join(f"{to}={'thing' if name == _SCALAR else f'thing.{name}'}, " for to, name in pairs)


class Anatomy:
    """One API at one version. Made by `anatomy`, and shared: it has no state."""

    __slots__ = (
        "_first_names",
        "_heads",
        "_levels",
        "_make_around",
        "_make_leaf",
        "_make_whole",
        "by_id",
        "has_whole_error",
        "row",
        "within",
    )

    def __init__(self, row: Row, request: type[Structure], response: type[Structure], version: int) -> None:
        self.row = row
        self.by_id = row.ids_since is not None and version >= row.ids_since
        """True if topics are named by their ids in this version."""
        self.has_whole_error = _travels(response, "error_code", version)
        """True if one field of the answer can refuse the whole."""
        paths = [path.strip() for path in row.things.split("+")] if row.things else []
        self._levels = [_levels(path, row.results, request, response) for path in paths]
        self._heads = [levels[0].field for levels in self._levels]
        self._first_names = {
            levels[0].element: levels[0].names[0] for levels in self._levels if levels[0].names
        }
        self._make_leaf = {levels[-1].element: _leaf_maker(levels[-1], row) for levels in self._levels}
        self._make_around = [_around_maker(*pair) for pair in pairwise(self._levels[0])] if paths else []
        refuses_whole = self.has_whole_error or (
            not paths and _wire_field(response, "error_code") is not None
        )
        self._make_whole = _whole_maker(response, row) if refuses_whole else None
        self.within: Anatomy | None = None
        """The anatomy of one head, where a row has one for it."""
        if row.within is not None:
            head = self._levels[0][0]
            self.within = Anatomy(row.within, head.element, head.result_class, version)

    # -- the outermost things ---------------------------------------------------------------------------------

    def heads(self, request: Any) -> list[Any]:
        """The elements of the outermost lists, one list after the other. A list that is null has none."""
        if len(self._heads) == 1:
            return getattr(request, self._heads[0]) or []
        return [each for field in self._heads for each in getattr(request, field) or ()]

    def only(self, request: Any, kept: Sequence[object]) -> Any:
        """The request with those heads alone for which `kept` is true."""
        flags = iter(kept)
        changes = {}
        for field in self._heads:
            values = getattr(request, field) or ()
            changes[field] = list(compress(values, islice(flags, len(values))))
        return attrs.evolve(request, **changes)

    def refused(self, head: Any, code: ErrorCode, text: str | None = None) -> Any:
        """The result of a head, with this error for each thing in it."""
        return self._refused(head, code, text, 0)

    def without(
        self,
        request: Any,
        codes: Sequence[ErrorCode],
        text: Callable[[Any, ErrorCode], str | None] | None = None,
    ) -> tuple[Any, Callable[[Any], Any]]:
        """The request without the heads that have a code, and a function that adds their refusals to its answer.

        An answer that refuses the whole stays as it is.
        """
        refused = [
            self.refused(head, code, None if text is None else text(head, code))
            for head, code in self._refusals(self.heads(request), codes)
        ]
        return self.only(request, [not code for code in codes]), self.adding(codes, refused)

    def adding(self, codes: Sequence[object], refused: list[Any]) -> Callable[[Any], Any]:
        """A function that adds the results of refused heads to the answer of the others, where the row wants them."""
        field, place = self._levels[0][0].result_field, self.row.place

        def add(response: Any) -> Any:
            if self.has_whole_error and response.error_code:
                return response
            found = getattr(response, field)
            if place == "in place":
                answered, others = iter(found), iter(refused)
                setattr(response, field, [next(others if code else answered) for code in codes])
            else:
                setattr(response, field, [*refused, *found] if place == "before" else [*found, *refused])
            return response

        return add

    def _refusals(self, heads: Sequence[Any], codes: Sequence[ErrorCode]) -> Iterator[tuple[Any, ErrorCode]]:
        pairs = ((head, code) for head, code in zip(heads, codes, strict=True) if code)
        if not self.row.once or len(self._levels[0]) > 1:
            return pairs
        return iter({self._name(head): (head, code) for head, code in pairs}.values())

    def name_of(self, head: Any) -> Any:
        """The first name of an outermost thing: that of the topic, group or user."""
        return getattr(head, self._first_names[type(head)]) if isinstance(head, Structure) else head

    def _name(self, thing: Any) -> Any:
        if not isinstance(thing, Structure):
            return thing
        names = next(levels[-1].names for levels in self._levels if levels[-1].element is type(thing))
        return tuple(getattr(thing, name) for name in names)

    # -- the answer to the whole ------------------------------------------------------------------------------

    def refuse(self, request: Any, code: ErrorCode, text: str | None = None) -> Any:
        """The answer with one error for the whole request, in its form of this version.

        Where a version has no field for it, the answer is empty: DescribeLogDirs before version 3.
        """
        if self._make_whole is None:
            return self.refuse_each(request, code, text)
        response = self._make_whole(request, code, text)
        if self.row.each:
            setattr(response, self._levels[0][0].result_field, self._each_refused(request, code, text))
        return response

    def refuse_each(self, request: Any, code: ErrorCode, text: str | None = None) -> Any:
        """The answer with one error for each thing of the request."""
        field = self._levels[0][0].result_field
        return _response_of(request)(**{field: self._each_refused(request, code, text)})

    def _each_refused(self, request: Any, code: ErrorCode, text: str | None) -> list[Any]:
        heads = self.heads(request)
        return [self._refused(head, code, text, 0) for head, _ in self._refusals(heads, [code] * len(heads))]

    def _refused(self, thing: Any, code: ErrorCode, text: str | None, depth: int) -> Any:
        if depth == len(self._make_around):
            return self._make_leaf[type(thing)](thing, code, text)
        things = getattr(thing, self._levels[0][depth + 1].field)
        if self.row.once and depth + 1 == len(self._make_around):
            things = {self._name(each): each for each in things}.values()
        return self._make_around[depth](
            thing, [self._refused(each, code, text, depth + 1) for each in things]
        )

    # -- things and their results, one by one -----------------------------------------------------------------

    def result(self, thing: Any, code: ErrorCode) -> Any:
        """The result of an innermost thing that has this error."""
        return self._make_leaf[type(thing)](thing, code, None)

    def around(self, head: Any, results: list[Any]) -> Any:
        """The result of a head that has these results in it."""
        return self._make_around[0](head, results)

    def asking(
        self, request: Any, names: Iterable[Sequence[Any]], thing: Callable[[Any], Any] = itemgetter(-1)
    ) -> Any:
        """The request about things with these names, of which the first is that of the element around each.

        `thing` makes the thing of a name; without it a thing is its name. Each element comes where it is named first.
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
        """The results of the innermost things in an answer, each behind its names from the outermost in."""
        level = self._levels[0][len(names)]
        for result in getattr(outer, level.result_field):
            path = (*names, getattr(result, level.result_names[0]))
            if len(path) == len(self._levels[0]):
                yield path, result
            else:
                yield from self.named_results(result, path)

    # -- the innermost things, for requests that are decided in parts -----------------------------------------

    def leaves(self, request: Any) -> Iterator[Leaf]:
        """The innermost things, in the order of the request."""
        for levels in self._levels:
            yield from self._leaves(request, levels, ())

    def _leaves(self, outer: Any, levels: Sequence[_Level], path: tuple[int, ...]) -> Iterator[Leaf]:
        values = getattr(outer, levels[len(path)].field)
        if len(path) == len(levels) - 1:
            for value in values:
                yield Leaf(value, path, outer)
        else:
            for number, value in enumerate(values):
                yield from self._leaves(value, levels, (*path, number))

    def part(self, request: Any, leaves: Sequence[Leaf]) -> Any:
        """A request that names only these things, which are in its order."""
        if len(self._levels) == 1:
            return self._narrowed(request, leaves, 0) if leaves else request
        named: dict[str, list[Any]] = {
            levels[0].field: [leaf.value for leaf in leaves if isinstance(leaf.value, levels[0].element)]
            for levels in self._levels
        }
        return attrs.evolve(request, **named)

    def _narrowed(self, outer: Any, leaves: Sequence[Leaf], depth: int) -> Any:
        levels = self._levels[0]
        field = levels[depth].field
        if depth == len(levels) - 1:
            return attrs.evolve(outer, **{field: [leaf.value for leaf in leaves]})
        values = getattr(outer, field)
        within: dict[int, list[Leaf]] = {}
        for leaf in leaves:
            within.setdefault(leaf.path[depth], []).append(leaf)
        some = [self._narrowed(values[number], those, depth + 1) for number, those in within.items()]
        return attrs.evolve(outer, **{field: some})

    def join(
        self,
        request: Any,
        numbers: Sequence[Sequence[int]],
        responses: Sequence[Any],
        ready: Sequence[Any] = (),
    ) -> Any:
        """The answers of all parts as one. `numbers` are those of each part's things; `ready` are further results.

        If one part is refused as a whole, that is the answer, unless such an answer names each thing (`Row.each`).
        """
        first = responses[0]
        if self.has_whole_error:
            first = next((response for response in responses if response.error_code), first)
            if first.error_code and not self.row.each:
                return first
        found = [list(self._results(response, 0)) for response in responses]
        if self.row.place == "in place":
            results = self._nested(request, iter(_in_order(numbers, found)), 0)
        else:
            results = [result for some in found for result in some]
        waits_ms = max(response.throttle_time_ms for response in responses)
        field = self._levels[0][0].result_field
        return attrs.evolve(first, throttle_time_ms=waits_ms, **{field: [*results, *ready]})

    def _results(self, outer: Any, depth: int) -> Iterator[Any]:
        """The results of the innermost things in an answer."""
        levels = self._levels[0]
        values = getattr(outer, levels[depth].result_field)
        if depth == len(levels) - 1:
            yield from values
        else:
            for value in values:
                yield from self._results(value, depth + 1)

    def _nested(self, outer: Any, results: Iterator[Any], depth: int) -> list[Any]:
        """The results of all that is in `outer`, taken in the order of the request."""
        levels = self._levels[0]
        values = getattr(outer, levels[depth].field)
        if depth == len(levels) - 1:
            return list(islice(results, len(values)))
        around = self._make_around[depth]
        return [around(value, self._nested(value, results, depth + 1)) for value in values]


def anatomy_of(request: Message, version: int) -> Anatomy:
    """The anatomy of a request's API."""
    assert request.API_KEY is not None
    return anatomy(request.API_KEY, version)


@cache
def anatomy(api_key: int, version: int) -> Anatomy:
    """The anatomy of an API at a version. Loads its messages at first use."""
    rows = ROWS.get(ApiKey(api_key), (Row(),))
    row = next(row for row in reversed(rows) if row.since <= version)
    return Anatomy(row, request_class(api_key), response_class(api_key), version)


def _response_of(request: Message) -> type[Message]:
    assert request.API_KEY is not None
    return response_class(request.API_KEY)


def _in_order(numbers: Sequence[Sequence[int]], found: Iterable[Sequence[Any]]) -> list[Any]:
    """The results of all things, by their numbers."""
    placed = [
        pair for group, some in zip(numbers, found, strict=True) for pair in zip(group, some, strict=True)
    ]
    placed.sort(key=itemgetter(0))
    return [result for _, result in placed]


# -- resolving ------------------------------------------------------------------------------------------------------


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
    """The class of the elements of a list: a structure, or that of plain values."""
    found = _wire_field(cls, field)
    assert found is not None, f"{cls.__name__} has no field {field}"
    assert not isinstance(found.type, (str, type)), f"{cls.__name__}.{field} is no list"
    kind = found.type[0]
    if isinstance(kind, str):
        return str if kind == "string" else int
    return kind


def _levels(things: str, results: str, request: type, response: type) -> list[_Level]:
    """The levels of a path, each checked against the classes that it leads through."""
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


def _compiled(text: str, cls: type) -> Make:
    made: Make = eval(text, {"Result": cls})
    return made


def _leaf_maker(level: _Level, row: Row) -> Make:
    """The function (thing, code, text) -> result of a refused thing."""
    given = _given(row.refused, level.result_class)
    return _compiled(
        f"lambda thing, code, text: Result({level.arguments()}{row.code}=code, {given})", level.result_class
    )


def _around_maker(level: _Level, inner: _Level) -> Make:
    """The function (element, results within) -> result of an element that holds others."""
    text = f"lambda thing, within: Result({level.arguments()}{inner.result_field}=within)"
    return _compiled(text, level.result_class)


def _whole_maker(response: type[Structure], row: Row) -> Make:
    """The function (request, code, text) -> answer that refuses the whole."""
    words = row.whole
    if _wire_field(response, "error_message") is not None and "error_message=" not in words:
        words += " error_message"
    given = _given(words, response)
    return _compiled(f"lambda thing, code, text: Result(error_code=code, {given})", response)


def _given(words: str, cls: type[Structure]) -> str:
    """The arguments for the further fields that a row lists: `name=value`, `name=*` from the request, or the text's field."""
    arguments = ""
    for word in words.split():
        name, has_value, value = word.partition("=")
        field = _wire_field(cls, name)
        assert field is not None, f"{cls.__name__} has no field {name}"
        if not has_value:
            value = "text" if field.nullable else "text or ''"
        arguments += f"{name}={f'thing.{name}' if value == _SCALAR else value}, "
    return arguments
