"""The default name of the decisions topic. PURE."""

__all__ = ["DECISIONS_TOPIC"]

DECISIONS_TOPIC = "odradek-spark-decisions"
"""The default of the option `decisionsTopic`. The option may name another topic, e.g. a topic that an administrator
has created.
"""
