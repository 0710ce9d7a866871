"""Kafka's protocol as values and bytes: messages, codecs, errors, record batches. Knows no IO."""

if __name__ != "odradek.wire":
    # A second copy would have classes of its own, whose errors an `except` with the first copy's classes does
    # not catch.
    raise ImportError(f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.wire`")
