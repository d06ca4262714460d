"""Requests that cross dtypes, vocabularies, values, drafts and batches, and what the reference says of them."""
