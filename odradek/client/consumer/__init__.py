"""The consumer without IO and threads: polls, positions, fetches, commits, group membership, assignors."""
