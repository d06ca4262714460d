"""Logits that are split over ranks, as the kit splits them: ranks that are threads, and the splits of a vocabulary."""
