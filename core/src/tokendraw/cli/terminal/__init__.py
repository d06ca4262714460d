"""What the terminal sees: tables, wrapped text, exit codes."""
