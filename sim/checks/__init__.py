"""What must hold during a run and after it."""
