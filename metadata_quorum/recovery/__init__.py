"""Recovery of a quorum from the remaining copies of the metadata log: the facts about the nodes, the choice
of a copy, and the plan. PURE.
"""
