"""Reading and writing on Spark, beside Spark's own connector."""
