"""All questions that are asked with and without rights: at least one for each API, with the rights that it needs.

A question names the topics `known` and `other`, which exist, and `absent`, which does not; a group and a transactional id.
Each case asks with names of its own where the question changes something. The recording lists the cases in this order.
"""

from __future__ import annotations

from tests.conformance.acls import data_questions, node_questions
from tests.conformance.acls.question import QUESTIONS, Names, Question, Right, api_of

__all__ = ["QUESTIONS", "Names", "Question", "Right", "api_of", "data_questions", "node_questions"]
