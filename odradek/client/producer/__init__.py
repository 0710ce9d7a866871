"""Records gathered into batches and sent: the producer without threads."""
