"""Prometheus' text exposition format (version 0.0.4), and OpenMetrics 1.0.0. PURE.

The two differ in the names of counters' families, in the escapes of HELP, and in the last line.

This is our own code, because prometheus_client makes an object per sample and would be ten times as slow. Tests read
our pages with its parser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

FORMER = "Former name, which ends with the next release: use"
"""The beginning of HELP for a family that is also served under the name that it had before."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricsText:
    """A page that is being written: `counter`, `gauge` or `histogram` opens a family of metrics, `sample` adds a value
    to the last family.
    """

    def __init__(self, *, is_openmetrics: bool = False) -> None:
        self._is_openmetrics = is_openmetrics
        self._lines: list[str] = []
        self._name = ""
        self._begun = 0
        """The number of lines before the samples of the last family."""

    def counter(self, name: str, described: str) -> None:
        """Begin a family of counters, which only grow until the node ends; its name ends in `_total`."""
        self._begin(name, "counter", described)

    def gauge(self, name: str, described: str) -> None:
        """Begin a family of gauges, whose values rise and fall."""
        self._begin(name, "gauge", described)

    def _begin(self, name: str, kind: str, described: str) -> None:
        self._name = name
        if self._is_openmetrics:
            # Only the samples of a counter have the suffix, and a quote is escaped in HELP, too.
            described = described.replace('"', r"\"")
            if kind == "counter":
                name = name.removesuffix("_total")
        self._lines.append(f"# HELP {name} {described}\n# TYPE {name} {kind}")
        self._begun = len(self._lines)

    def sample(self, value: float, **labels: object) -> None:
        """Add one value with these labels to the last family."""
        self._lines.append(f"{self._name}{_label_text(labels)} {value!r}")

    def one(self, value: float) -> None:
        """Add a value without labels to the last family, as the only value of the family."""
        self._lines.append(f"{self._name} {value!r}")

    def former(self, name: str, of_value: Callable[[float], float] | None = None) -> None:
        """Repeat the last family, which is one of gauges, under the name that it had in the release before.

        `of_value` converts each value into the former unit. HELP says that the name is no longer the right one.
        """
        present, begun = self._name, self._begun
        lines = self._lines[begun:]
        self.gauge(name, f"{FORMER} {present} instead.")
        for line in lines:
            labels, _, value = line.removeprefix(present).rpartition(" ")
            shown = value if of_value is None else repr(of_value(float(value)))
            self._lines.append(f"{name}{labels} {shown}")

    def histogram(self, name: str, described: str) -> None:
        """Begin a family of histograms; `distribution` adds a histogram to it."""
        self._begin(name, "histogram", described)

    def distribution(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: object
    ) -> None:
        """Add one histogram to the last family. `counts[i]` is the number of values in bucket i; the last bucket is for
        values above all bounds. `total` is the sum of all values.
        """
        name, lines, below = self._name, self._lines, 0
        inside = _label_text(labels)[1:-1]
        prefix = f"{inside}," if inside else ""
        for bound, count in zip(bounds, counts, strict=False):
            below += count
            lines.append(f'{name}_bucket{{{prefix}le="{bound!r}"}} {below}')
        below += counts[-1]
        lines.append(f'{name}_bucket{{{prefix}le="+Inf"}} {below}')
        braces = f"{{{inside}}}" if inside else ""
        lines.append(f"{name}_sum{braces} {total!r}\n{name}_count{braces} {below}")

    def render(self) -> bytes:
        """Return the page in Prometheus' text format, as UTF-8."""
        if self._is_openmetrics:
            self._lines.append("# EOF")
        # Replace characters that cannot be encoded, because a directory's name may have bytes that are not
        # UTF-8.
        return ("\n".join(self._lines) + "\n").encode("utf-8", "replace")


def _label_text(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inside}}}"
