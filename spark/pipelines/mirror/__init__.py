"""Topics of one cluster into another, exactly once."""
