"""Helpers around torch: lazy import, checks and uploads of tensors, threads, forks and ``torch.compile``."""
