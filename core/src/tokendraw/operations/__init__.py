"""The operations that plugins can serve, one folder each."""
