"""The metadata quorum: the nodes that decide all changes of the cluster, and replicate the log of these
decisions.
"""

if __name__ != "odradek.metadata_quorum":
    # Import this package under one name only. Under a second name Python would load a second copy of each
    # module. Then an `except` with an error class of the first copy would not catch errors of the second
    # copy.
    raise ImportError(
        f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.metadata_quorum`"
    )
