"""Messages: exceptions, warnings, and the functions that word them."""
