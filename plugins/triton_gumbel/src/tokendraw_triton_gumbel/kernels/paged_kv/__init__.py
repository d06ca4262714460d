"""Launch K: the page plan of a batch."""
