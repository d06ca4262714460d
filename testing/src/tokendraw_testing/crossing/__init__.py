"""Crossing of dtypes, vocabulary sizes, values and requests, so that a bug that lives in one corner meets a call."""
