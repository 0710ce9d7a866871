"""Tables into which topics are loaded: directories of Parquet, Delta and Iceberg."""
