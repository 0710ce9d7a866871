"""The form of a mutant: a change of one function, its seal, and how the function is replaced."""
