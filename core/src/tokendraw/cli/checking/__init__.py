"""Selects what ``tokendraw check`` runs, and says what repeats a part of a run."""
