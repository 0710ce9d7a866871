"""The expensive requests of every API that a node serves: one or several for each.

A new API needs an entry in one of the modules `*_lines.py` (a test checks this). To find expensive requests, consider
three causes. A handler does much work for each element of a request. A request names existing things many times. Bytes
of a request inflate to more bytes.
"""

from __future__ import annotations

from bench.budget.broker_lines import BROKER_LINES
from bench.budget.controller_lines import CONTROLLER_LINES
from bench.budget.frames import Costly
from bench.budget.held_lines import HELD_LINES
from bench.budget.telemetry_lines import TELEMETRY_LINES
from bench.budget.transaction_lines import TRANSACTION_LINES
from odradek.wire.api_keys import ApiKey

_LINES = BROKER_LINES | CONTROLLER_LINES | TRANSACTION_LINES | TELEMETRY_LINES
LINES: dict[ApiKey, tuple[Costly, ...]] = {
    key: (*_LINES[key], *HELD_LINES.get(key, ())) for key in ApiKey if key in _LINES
}
"""The expensive requests of each API, in the order of the API keys."""
