"""The default name of the decisions topic. PURE."""

__all__ = ["DECISIONS_TOPIC"]

DECISIONS_TOPIC = "odradek-spark-decisions"
"""The default of the option `decisionsTopic`, which may name another topic, for instance a topic of an administrator.
"""
