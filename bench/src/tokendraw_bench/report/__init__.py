"""Reports of a run, as lines and as a table."""
