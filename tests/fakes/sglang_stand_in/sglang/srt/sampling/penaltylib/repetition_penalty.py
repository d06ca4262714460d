"""Stands in for SGLang's repetition penalty of a batch, for which no test here asks."""


def apply_scaling_penalties(logits, scaling_penalties):
    raise NotImplementedError
