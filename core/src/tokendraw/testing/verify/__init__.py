"""What the kit holds the operation ``verify`` to."""
