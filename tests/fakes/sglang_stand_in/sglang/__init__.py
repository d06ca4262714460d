"""Stands in for SGLang 0.5.23: the functions that the adapter calls, with SGLang's signatures."""
