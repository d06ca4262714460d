"""Stands in for SGLang 0.5.23: what the adapter calls of it, with its signatures."""
