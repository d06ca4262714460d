"""Output on a terminal: tables, wrapped text, exit codes."""
