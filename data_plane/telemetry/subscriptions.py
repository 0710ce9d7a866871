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
"""How often clients without a subscription ask again."""
_LETTERS_PER_UNIT = 500
"""The letters that all patterns compare in the time that the description of one partition takes."""
_KEY_METRICS, _KEY_INTERVAL, _KEY_MATCH = "metrics", "interval.ms", "match"

Attributes = Mapping[str, str | None]
"""The properties of a client, by the names that patterns have for them."""


@attrs.frozen
class Wanted:
    """The metrics that one client is asked to push, and their interval."""

    metrics: tuple[str, ...]
    """Prefixes of names in order; empty: nothing. `*` stands alone."""
    interval_ms: int


NOTHING = Wanted((), INTERVAL_MS_DEFAULT)


@attrs.frozen
class _Subscription:
    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, Pattern]

    def matches(self, attributes: Attributes) -> bool:
        """True if each pattern matches all of its text. A text that the client has not given matches no pattern."""
        return all(
            (text := attributes.get(name)) is not None and pattern.fullmatch(text) is not None
            for name, pattern in self.patterns.items()
        )


class Subscriptions:
    """All subscriptions of the cluster."""

    def __init__(self, log_unreadable: Callable[[str, str], None]) -> None:
        """`log_unreadable` gets the name of a subscription that cannot be applied, and the reason."""
        self.version = 0
        """Grows with each change."""
        self._log_unreadable = log_unreadable
        self._by_name: dict[str, _Subscription] = {}
        self._known: dict[Wanted, Wanted] = {}
        """One object for all clients that are asked for the same."""

    def follow(
        self,
        configs: Mapping[tuple[int, str], Mapping[str, str]],
        changed: Iterable[tuple[int, str]],
    ) -> None:
        """Apply the changed ones of these configurations, as far as they are subscriptions."""
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
                # Another program wrote this subscription. Without its patterns it would apply to all clients.
                self._log_unreadable(name, str(error))

    def wanted_of(self, attributes: Attributes) -> Work[Wanted]:
        """Find the metrics that a client is asked to push: all that matching subscriptions name, at the
        shortest of their intervals."""
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
    """Read a subscription; a key without a value has its default. Raises `ConfigError`."""
    parsed = {
        key: definition.parse(values[key]) if key in values else definition.default_value()
        for key, definition in client_metrics_defs().items()
    }
    metrics, interval_ms, match = parsed[_KEY_METRICS], parsed[_KEY_INTERVAL], parsed[_KEY_MATCH]
    assert isinstance(metrics, list)
    assert isinstance(interval_ms, int)
    assert isinstance(match, list)
    return _Subscription(frozenset(metrics), interval_ms, parse_patterns(match))
