"""The consumer without IO and threads: positions, fetches and group membership."""
