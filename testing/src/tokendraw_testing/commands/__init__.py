"""The commands ``tokendraw check`` and ``tokendraw new``."""
