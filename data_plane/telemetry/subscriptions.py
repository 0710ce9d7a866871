"""Client metrics subscriptions as a broker applies them: the metrics that a client is asked to push, and their
interval (KIP-714). PURE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from odradek.metadata_quorum.config.client_metrics_configs import Pattern, parse_patterns
from odradek.metadata_quorum.config.config_defs import ConfigError, client_metrics_defs
from odradek.serving.steps import Work
from odradek.wire.config_resources import RESOURCE_CLIENT_METRICS

__all__ = ["ALL_METRICS", "Attributes", "Subscriptions", "Wanted"]

ALL_METRICS = "*"
INTERVAL_MS_DEFAULT = 300_000
"""The interval, in milliseconds, at which clients without a subscription ask for one again."""
_LETTERS_PER_UNIT = 500
"""The number of letters that all patterns together compare in one unit of work. (A unit is the time to
describe one partition.) The letters are those of a client's properties.
"""
_KEY_METRICS, _KEY_INTERVAL, _KEY_MATCH = "metrics", "interval.ms", "match"

Attributes = Mapping[str, str | None]
"""The properties of a client, by the names that patterns use for them. The value is None if the client has
not sent the property.
"""


@attrs.frozen
class Wanted:
    """The metrics that one client is asked to push, and the interval."""

    metrics: tuple[str, ...]
    """Prefixes of metric names, sorted. An empty tuple means that the client pushes nothing. `("*",)` means
    that it pushes all metrics.
    """
    interval_ms: int


NOTHING = Wanted((), INTERVAL_MS_DEFAULT)


@attrs.frozen
class _Subscription:
    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, Pattern]

    def matches(self, attributes: Attributes) -> bool:
        """True if each pattern matches the whole text of its property.

        A property that the client has not sent matches no pattern.
        """
        return all(
            (text := attributes.get(name)) is not None and pattern.fullmatch(text) is not None
            for name, pattern in self.patterns.items()
        )


class Subscriptions:
    """All telemetry subscriptions of the cluster."""

    def __init__(self, log_unreadable: Callable[[str, str], None]) -> None:
        """`log_unreadable` is called with the name of a subscription that cannot be applied, and the reason."""
        self.version = 0
        """A number that grows with each change of a subscription."""
        self._log_unreadable = log_unreadable
        self._by_name: dict[str, _Subscription] = {}
        self._known: dict[Wanted, Wanted] = {}
        """The `Wanted` objects in use, so that clients with equal subscriptions share one object."""

    def follow(
        self,
        configs: Mapping[tuple[int, str], Mapping[str, str]],
        changed: Iterable[tuple[int, str]],
    ) -> None:
        """Apply those changed configurations that are telemetry subscriptions. Ignore all others."""
        for kind, name in changed:
            if kind != RESOURCE_CLIENT_METRICS:
                continue
            self.version += 1
            self._known.clear()
            values = configs.get((kind, name))
            self._by_name.pop(name, None)
            if not values:
                continue
            try:
                self._by_name[name] = _subscription(values)
            except ConfigError as error:
                # Another program wrote this invalid subscription. It is skipped, since without its patterns
                # it would apply to all clients.
                self._log_unreadable(name, str(error))

    def wanted_of(self, attributes: Attributes) -> Work[Wanted]:
        """Compute which metrics a client is asked to push, and how often. These are the metrics of all matching
        subscriptions, at the shortest of their intervals. The work is done in slices.
        """
        metrics: set[str] = set()
        interval_ms = INTERVAL_MS_DEFAULT
        units = 1 + sum(len(text or "") for text in attributes.values()) // _LETTERS_PER_UNIT
        for subscription in tuple(self._by_name.values()):
            if subscription.matches(attributes):
                metrics |= subscription.metrics
                interval_ms = min(interval_ms, subscription.interval_ms)
            yield units
        names = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        found = Wanted(names, interval_ms)
        return self._known.setdefault(found, found)

    def __len__(self) -> int:
        return len(self._by_name)


def _subscription(values: Mapping[str, str]) -> _Subscription:
    """Parse a subscription's configuration. A missing key has its default. Raises `ConfigError`."""
    parsed = {
        key: definition.parse(values[key]) if key in values else definition.default_value()
        for key, definition in client_metrics_defs().items()
    }
    metrics, interval_ms, match = parsed[_KEY_METRICS], parsed[_KEY_INTERVAL], parsed[_KEY_MATCH]
    assert isinstance(metrics, list)
    assert isinstance(interval_ms, int)
    assert isinstance(match, list)
    return _Subscription(frozenset(metrics), interval_ms, parse_patterns(match))
