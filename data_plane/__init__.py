"""The broker: partition logs, replication, request handlers."""

if __name__ != "odradek.data_plane":
    # A second copy would have classes of its own: its errors would pass by an `except` that names those of the first.
    raise ImportError(f"{__name__!r} is a folder of Odradek's sources: import odradek.data_plane")
