"""Requests crossed over dtypes, vocabularies, values, drafts and batches, judged by the reference."""
