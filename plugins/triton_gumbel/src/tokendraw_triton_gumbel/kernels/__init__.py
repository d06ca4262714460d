"""Device code: what every stage shares, then a room for each stage of a call."""
