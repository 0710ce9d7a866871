"""What must hold of groups, their members and their offsets."""
