"""The writing side of the sink: the plan of a write, its tasks, and the encoding of rows."""
