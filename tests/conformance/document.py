"""docs/compatibility.md, written from the corpus and from `deliberate.py`; a test compares it with the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from odradek.wire.api import api_name, api_versions
from odradek.wire.api_keys import ApiKey
from tests.conformance.comparison import load
from tests.conformance.corpus import APIS, CORPUS, cases_of, key_of
from tests.conformance.deliberate import DELIBERATE, NOT_SEEN, NOT_SERVED, OVER_BUDGET, Remark
from tests.conformance.telemetry.recording import RECORDING as TELEMETRY
from tests.groups.beside_kafka.asking import ERRORS
from tests.groups.beside_kafka.recording import RECORDING as GROUPS

_OF_CONSUMER_GROUPS = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE)
PATH = Path(__file__).parents[2] / "docs" / "compatibility.md"
_TITLE = """# Compatibility with Apache Kafka

Odradek is held to Apache Kafka 4.3 by a corpus of {cases} conversations with {answers} compared answers. They are good, edge
and bad requests, sent raw to both, compared field by field. What must differ (ids, ports, the present time) is named
before. Kafka's answers are recorded in `tests/conformance/kafka_4.3/`; `make test` compares ours with them, and
`make conformance` records them again from a Kafka that it starts (Java and mvn). This page is written from the same
sources: `python -m tests.conformance document`.
"""


def render() -> str:
    """Return the text of the page."""
    answers = {api: sum(map(len, load(api).values())) for api in APIS}
    parts = [
        _TITLE.format(cases=len(CORPUS), answers=sum(answers.values())),
        "## What is served\n",
        "| key | API | versions | cases | answers |\n| ---: | --- | --- | ---: | ---: |",
        *(row for _, row in sorted(_rows(answers))),
        _with_a_plugin(),
        "FindCoordinator 6 answers for groups; share groups, which that version is about, are not served. Produce 0 to 2"
        "\nare advertised and refused, as Kafka does for old clients' sake.\n",
        _about_groups(),
        "## What is not\n",
        *(
            f"- **{_ranges(group.keys)}** {group.what}: {group.until}."
            for group in NOT_SERVED
            if not group.needs_plugin
        ),
        "\n## Deliberate differences\n",
        "Every one that the corpus meets; a test fails when one is missing here, or no longer there.\n",
        *(f"- **{rule.api}**: Kafka {rule.kafka}. Here: {rule.here}. {rule.reason}" for rule in DELIBERATE),
        "\n## What a request over its budget gets\n",
        "Each frame has a budget of work and memory (docs/internals/budgets.md). What asks for more than:\n",
        "| API | more than | gets |\n| --- | --- | --- |",
        *(f"| {each.apis} | {each.limit} | {each.gets} |" for each in OVER_BUDGET),
        "\n## Other differences\n",
        "Those that answers to single requests do not show:\n",
        *(_area(area, remarks) for area, remarks in NOT_SEEN.items()),
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _rows(answers: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yield the key and the row of each API, also of those that have a recording of their own."""
    for api in APIS:
        yield _row(key_of(api), f"{len(cases_of(api))} | {answers[api]}")
    with_a_plugin = (key for group in NOT_SERVED if group.needs_plugin for key in group.keys)
    for key in (*_OF_CONSUMER_GROUPS, *with_a_plugin):
        yield _row(ApiKey(key), "below | below")


def _row(key: ApiKey, counts: str) -> tuple[int, str]:
    first, last = api_versions(key)
    return int(key), f"| {int(key)} | {api_name(key)} | {first} to {last} | {counts} |"


def _about_groups() -> str:
    recorded = GROUPS.load()
    errors = recorded.pop(ERRORS)
    names = " and ".join(f"{api_name(key)} ({int(key)})" for key in _OF_CONSUMER_GROUPS)
    return (
        f"Groups of the consumer protocol (KIP-848) have {len(recorded)} conversations with"
        f" {sum(map(len, recorded.values()))} answers of their own\n(`tests/groups/beside_kafka/`)."
        f" They are about {names} in versions 0 and 1,\nabout offsets of"
        f" members, and about old requests for such groups. {len(errors)}\ntriples of request,"
        " version and error are in the recording; no answer differs.\n"
    )


def _with_a_plugin() -> str:
    """Return the paragraph about APIs that Kafka offers only with a plugin, and how they were tested."""
    recorded = TELEMETRY.load()
    answers = sum(map(len, recorded.values()))
    (keys,) = (group.keys for group in NOT_SERVED if group.needs_plugin)
    names = ", ".join(f"{api_name(key)} ({key})" for key in keys)
    return (
        f"\n{names} are served, too. Kafka 4.3 serves them with a plugin alone (KIP-714), so they have a recording of their own:\n"
        f"{len(recorded)} conversations with {answers} answers (`tests/conformance/telemetry/`).\n"
    )


def _ranges(keys: tuple[int, ...]) -> str:
    """Format API keys, and write runs of consecutive keys like `52 to 59`."""
    runs: list[list[int]] = []
    for key in keys:
        if runs and runs[-1][-1] == key - 1:
            runs[-1].append(key)
        else:
            runs.append([key])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _area(area: str, remarks: tuple[Remark, ...]) -> str:
    return "\n".join([f"### {area}\n", *(f"- **{each.subject}** {each.text}" for each in remarks), ""])
