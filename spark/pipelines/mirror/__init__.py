"""Topics of one cluster into another, exactly once; see README.md."""
