"""`promtool check metrics` has no remark about any metric, except about the former names that are still served."""

from __future__ import annotations

import re

from odradek.node.metrics.metrics_text import FORMER, MetricsText
from sim.machine.world import World
from testkit.lone_node import create_topic
from tests.node.monitoring.prometheus_tools import promtool
from tests.node.test_metrics import DOCUMENT, Connect, page, play_measured

ROW = re.compile(r"\| `(odradek_\w+)` \| (\w+) \| ([\w, ]*) \| (.*) \|")


def without_former(text: str) -> str:
    """Leave out the families that are served under a former name."""
    families = re.split(r"(?m)^(?=# HELP )", text)
    return "".join(family for family in families if FORMER not in family.partition("\n")[0])


def documented() -> str:
    """Write a page on which each metric of docs/metrics.md has a sample, with all of its labels."""
    lines = []
    for name, kind, labels, described in ROW.findall(DOCUMENT.read_text()):
        pairs = [f'{label}="x"' for label in labels.split(", ") if label]
        lines.append(f"# HELP {name} {described}\n# TYPE {name} {kind}")
        if kind == "histogram":
            braces = "{" + ",".join(pairs) + "}" if pairs else ""
            bucket = ",".join([*pairs, 'le="+Inf"'])
            lines.append(f"{name}_bucket{{{bucket}}} 1\n{name}_sum{braces} 1\n{name}_count{braces} 1")
        else:
            lines.append(f"{name}{{{','.join(pairs)}}} 1")
    return "\n".join(lines) + "\n"


def test_promtool_has_no_remark_about_a_page() -> None:
    """`promtool check metrics` has no remark about the page of a node, with all figures of its parts."""

    async def script(world: World, connect: Connect) -> None:
        await create_topic(await connect())
        text = await page(world)
        assert promtool(("check", "metrics"), without_former(text)) == (0, "")

    play_measured(script)


def test_promtool_has_no_remark_about_a_documented_metric() -> None:
    """Each metric of docs/metrics.md passes, also those that appear only after errors or with TLS."""
    text = without_former(documented())
    assert text.count("# TYPE ") > 150
    assert promtool(("check", "metrics"), text) == (0, "")


def test_former_names_stand_in_a_table() -> None:
    """Each former name is on the page beside its new one, with the same value, and in the table of new names."""
    rows = re.findall(r"(?m)^\| (`odradek_\w+`.*) \| (`odradek_\w+`.*) \|$", DOCUMENT.read_text())
    told = [
        pair
        for old, new in rows
        for pair in zip(*(re.findall(r"`(\w+)`", each) for each in (old, new)), strict=True)
    ]

    async def script(world: World, connect: Connect) -> None:
        await create_topic(await connect())
        text = await page(world)
        served = re.findall(rf"(?m)^# HELP (\w+) {FORMER} (\w+) instead\.$", text)
        assert sorted(served) == sorted(told)
        for old, new in served:
            if old.endswith("_sum"):
                values = [re.findall(rf"(?m)^{name}((?:{{.*}})? .*)$", text) for name in (old, new)]
                assert values[0] == values[1] != []

    play_measured(script)


def test_a_former_name_has_the_former_unit() -> None:
    """Where a metric has changed its unit, the former name keeps the former one, and its word for no value."""
    text = MetricsText()
    text.gauge("left_seconds", "Time left.")
    text.sample(7200, directory="/a b")
    text.sample(-1, directory="/c")
    text.former("left_hours", lambda left: left if left < 0 else left / 3600)
    assert text.render().decode().splitlines()[4:] == [
        f"# HELP left_hours {FORMER} left_seconds instead.",
        "# TYPE left_hours gauge",
        'left_hours{directory="/a b"} 2.0',
        'left_hours{directory="/c"} -1.0',
    ]
