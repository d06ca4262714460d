"""The command ``tokendraw bench``."""
