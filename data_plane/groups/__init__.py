"""Group coordinators: consumer groups of both protocols and their committed offsets."""
