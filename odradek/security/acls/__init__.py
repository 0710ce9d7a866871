"""ACLs: rules, their index, decisions. PURE."""
