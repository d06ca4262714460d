"""Dispatch of a batch: from its variant to a compiled call and a launch context."""
