"""The corpus, whole: importing this module enters the cases of all families."""

from __future__ import annotations

from tests.conformance import cases_fetch, cases_metadata, cases_produce, cases_topics
from tests.conformance.talk import CORPUS, hold

FAMILIES = (cases_metadata, cases_topics, cases_produce, cases_fetch)

__all__ = ["CORPUS", "FAMILIES", "hold"]
