"""The pipeline that applies Debezium's change events to a Delta table, and a source of such events."""
