"""What tokendraw says: exceptions, warnings, and how their words are put."""
