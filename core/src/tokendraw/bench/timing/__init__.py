"""How calls are timed, and the read-only pass that ratios refer to."""
