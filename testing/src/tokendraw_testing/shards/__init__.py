"""Logits split over ranks: ranks as threads, and the splits of a vocabulary."""
