"""The writing of the sink: its plan, its tasks, records from rows."""
