"""The metadata quorum: one replicated log decides what the cluster is, and this package decides that log."""

if __name__ != "odradek.metadata_quorum":
    # A second copy would have classes of its own, whose errors an `except` with the first copy's classes does
    # not catch.
    raise ImportError(
        f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.metadata_quorum`"
    )
