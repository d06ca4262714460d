"""Dispatch of a batch: the compiled call of its variant, and the context that launches its kernels."""
