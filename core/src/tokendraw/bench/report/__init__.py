"""What was found, as lines, a table or a picture."""
