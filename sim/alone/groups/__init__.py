"""A group coordinator alone: its machine, its log and the partition below, under a schedule."""
