"""Recovery of a quorum from the copies of the metadata log that are left: what was found, the choice, the plan. PURE."""
