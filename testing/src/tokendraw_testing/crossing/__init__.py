"""Crosses dtypes, vocabulary sizes, values and requests, so that calls reach bugs in a single corner."""
