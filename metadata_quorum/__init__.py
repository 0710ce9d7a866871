"""The metadata quorum: a replicated log holds every decision about the cluster, and this package decides and
replicates that log.
"""

if __name__ != "odradek.metadata_quorum":
    # Import this package under one name only. A second copy would have its own error classes, which an `except`
    # for the first copy's classes does not catch.
    raise ImportError(
        f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.metadata_quorum`"
    )
