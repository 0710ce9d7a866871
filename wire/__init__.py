"""Kafka's protocol as values and bytes: messages, codecs, errors, record batches. Does no IO."""

if __name__ != "odradek.wire":
    # Refuse an import of this package under a second name. The second copy would have its own error classes.
    # An `except` for the first copy's classes would not catch them.
    raise ImportError(f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.wire`")
