"""Shared parts for operations on rows of logits: requests, the expectation of each row, and draws in bulk."""
