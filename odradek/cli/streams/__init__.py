"""What commands read and write: the standard streams, records as text, and how far a stream has come."""
