"""Timers of calls, and the read-only pass that ratios refer to."""
