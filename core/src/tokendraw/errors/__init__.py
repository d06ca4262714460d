"""Exceptions and warnings, and the wording of messages."""
