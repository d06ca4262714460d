"""Launch 3: draws rows that keep more tokens than launch 2 collects."""
