"""The kit itself: subjects, properties, trials, statistics."""
