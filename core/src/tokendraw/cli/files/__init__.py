"""Reads the files of logits for ``tokendraw sample``."""
