"""What callers and plugins hand to each other: parameters, metadata, capabilities, outputs."""
