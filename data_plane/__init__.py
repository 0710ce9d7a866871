"""The broker: partition logs, replication, coordinators of groups and transactions, request handlers."""

if __name__ != "odradek.data_plane":
    # Import this package under one name only. A second copy would have its own error classes, which an `except`
    # for the first copy's classes does not catch.
    raise ImportError(
        f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.data_plane`"
    )
