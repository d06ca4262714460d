"""Timers of calls, and the reads and copies that ratios divide by."""
