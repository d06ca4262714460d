"""Launch 2: the draw of a row, from at most 128 candidates."""
