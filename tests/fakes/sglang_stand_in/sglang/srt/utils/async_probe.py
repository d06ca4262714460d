"""Stands in for SGLang's treatment of NaN in logits."""

import torch


def sanitize_nan_logits(logits, msg=""):
    torch.nan_to_num_(logits, nan=-1e30, posinf=1e30, neginf=-1e30)
