"""Reports of a run: as lines, a table or a picture."""
