"""Kafka's protocol as values and bytes: messages, codecs, errors, record batches. Knows no IO."""

if __name__ != "odradek.wire":
    # A second copy would have classes of its own: its errors would pass by an `except` that names those of the first.
    raise ImportError(f"{__name__!r} is a folder of Odradek's sources: import odradek.wire")
