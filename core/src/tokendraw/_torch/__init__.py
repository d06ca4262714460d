"""Helpers around torch: lazy import, uploads, checks of tensors, CUDA graphs, forks, threads and ``torch.compile``."""
