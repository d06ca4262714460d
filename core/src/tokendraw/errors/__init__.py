"""Exceptions and warnings, the wording of messages, notices given once per process, and install commands."""
