"""The broker: partition logs, replication, request handlers."""

if __name__ != "odradek.data_plane":
    # A second copy would have classes of its own, whose errors an `except` with the first copy's classes does
    # not catch.
    raise ImportError(
        f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.data_plane`"
    )
