"""The default name of the decisions topic. PURE."""

__all__ = ["DECISIONS_TOPIC"]

DECISIONS_TOPIC = "odradek-spark-decisions"
"""The option `decisionsTopic` names another topic, for instance a topic of an administrator."""
