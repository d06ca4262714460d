"""Stands in for SGLang's attention in data parallel."""


def is_dp_attention_enabled():
    return False
