"""What the ranks of a split vocabulary told each other: thresholds and tokens of it, the same on every rank."""
