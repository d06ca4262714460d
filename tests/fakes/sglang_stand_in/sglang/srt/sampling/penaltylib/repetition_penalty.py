"""Stands in for SGLang's repetition penalty of a batch."""

import torch


def apply_scaling_penalties(logits, scaling_penalties):
    logits[:] = torch.where(logits < 0, logits * scaling_penalties, logits / scaling_penalties)
