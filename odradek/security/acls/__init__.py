"""ACLs: the rules, an index to find them, and the decisions that follow from them. PURE."""
