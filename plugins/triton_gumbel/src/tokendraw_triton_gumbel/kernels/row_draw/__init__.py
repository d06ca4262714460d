"""Launch 2: the draw of a row, from at most some 1,000 candidates."""
