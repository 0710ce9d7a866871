"""The work that makes a request of each API expensive: one line or several for every API that a node serves.

A new API needs its line (a test asks a node what it serves), in one of the modules of lines. Think of the handler's
work for each element of a request. Think of existing things that are named many times, and of bytes that expand to
more bytes.
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
"""The lines of each API, in the order of the API keys."""
