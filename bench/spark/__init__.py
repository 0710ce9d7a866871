"""Reading and writing on Spark, compared with Spark's own connector."""
