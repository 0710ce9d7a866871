"""Odradek and Spark: what turns record batches into Spark's rows; see README.md."""
