"""The metadata quorum: it decides all changes of the cluster, and replicates the log that holds these
decisions.
"""

if __name__ != "odradek.metadata_quorum":
    # Import this package under one name only. Under a second name Python would load a second copy, whose
    # error classes an `except` for the first copy does not catch.
    raise ImportError(
        f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.metadata_quorum`"
    )
