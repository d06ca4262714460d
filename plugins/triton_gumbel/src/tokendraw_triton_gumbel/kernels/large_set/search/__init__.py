"""Finds the exact threshold of a row in one program: among few tiles, or in the entire row."""
