"""Input and output of commands: the standard streams, records as text, and how far a stream was processed."""
