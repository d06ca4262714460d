"""What ``tokendraw check`` selects, and how it says what repeats a part of a run."""
