"""Input and output of commands: the standard streams, records as text, and the progress in a stream."""
