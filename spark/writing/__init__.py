"""The writing side of the sink: the plan, the tasks, and the encoding of rows."""
