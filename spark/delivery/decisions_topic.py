"""The default name of the decisions topic. PURE."""

__all__ = ["DECISIONS_TOPIC"]

DECISIONS_TOPIC = "odradek-spark-decisions"
"""The option `decisionsTopic` names another, for instance one that an administrator has made."""
