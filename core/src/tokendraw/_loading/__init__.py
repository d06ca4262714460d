"""The objects that callers hold, and how they come to them."""
