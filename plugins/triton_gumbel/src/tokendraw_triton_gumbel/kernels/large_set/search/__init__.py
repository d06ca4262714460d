"""The exact threshold of a row, found by one program: among few tiles, or in all of the row."""
