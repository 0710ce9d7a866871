"""The segments of a log: files of batches, and their sparse indexes."""
