"""The decisions of a quorum's recovery from the remaining copies of the metadata log: facts about the nodes,
the choice of a copy, the plan. PURE.
"""
