"""The examinations of ``tokendraw doctor``."""
