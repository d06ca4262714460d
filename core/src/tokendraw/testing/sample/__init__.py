"""What the kit holds the operation ``sample`` to."""
