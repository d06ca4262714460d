"""Launch 3: the draw of rows that keep more tokens than launch 2 collects."""
