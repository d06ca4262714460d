"""The steps of a call: check, route, run, and fall back when a backend fails."""
