"""State that nodes derive from logs, and what they made of it: against folds of these logs."""
