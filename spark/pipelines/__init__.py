"""Jobs on Spark that people run and copy."""
