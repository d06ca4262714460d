"""Launch 4: log-probabilities and ranks."""
