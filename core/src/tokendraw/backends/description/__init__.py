"""Frozen records: capabilities of plugins, needs of callers, facts of a machine."""
