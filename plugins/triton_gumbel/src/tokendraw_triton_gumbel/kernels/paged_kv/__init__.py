"""The page plan of a batch."""
