"""Parts that operations on rows of logits share: requests, the expectation of each row, and draws in bulk."""
