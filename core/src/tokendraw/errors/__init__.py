"""Exceptions and warnings, the wording of messages, and notices that are shown once."""
