"""Kafka's protocol as values and bytes: messages, codecs, errors, record batches. Knows no IO."""
