"""Kafka's protocol as values and bytes: messages, codecs, errors, record batches. Does no IO."""

if __name__ != "odradek.wire":
    # Import this package under one name only. A second copy would have its own error classes, which an `except`
    # for the first copy's classes does not catch.
    raise ImportError(f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.wire`")
