"""Finds the installed plugins, their descriptions, and the user's settings."""
