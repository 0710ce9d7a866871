"""The hunt for all mutants: resumable steps that share a budget of CPU time."""
