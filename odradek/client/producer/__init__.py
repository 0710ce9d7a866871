"""The producer without threads: it collects records into batches and sends them."""
