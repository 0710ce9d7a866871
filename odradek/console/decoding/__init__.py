"""Decodes keys, values and headers of records for people: texts, JSON, Avro, Protobuf, records of internal topics."""
