"""The hunt for all mutants: steps, which can be resumed, and the budget of CPU time that they share."""
