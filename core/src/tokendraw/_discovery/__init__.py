"""Which plugins are installed, what they say of themselves, and what the user has set."""
