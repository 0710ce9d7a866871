"""Recovery of a quorum from the remaining copies of the metadata log: what was found, the choice of a copy,
the plan. PURE.
"""
