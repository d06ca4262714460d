"""Counts the kernels of triton-gumbel that a V2 sampler of vLLM needs: its kernels compile and launch nothing."""

import torch

import tokendraw
from routing import CPU, drafting
from selections import substitute
from tokendraw_triton_gumbel import plugin
from tokendraw_vllm import _replacement
from triton_stand_ins import sampler_for

MODEL_DTYPE = torch.bfloat16
REQUESTS = (
    {},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05, "seed": 3},
    {"temperature": 0.0},
)
"""Parameters of requests: each parameter alone, all, and none."""


def draw_through_kernels(patch):
    """Have the adapter load triton-gumbel for an H200, with the kernels of :mod:`triton_stand_ins`."""
    backend = sampler_for("sm_90")
    backend._current_index = lambda: -1

    def load_sampler(*, device, need):
        operations = plugin.tokendraw_describe().operations
        sampler = drafting(operations["verify"], backend, companion_capabilities=None)
        substitute(sampler._dispatcher, backend, "triton-gumbel")
        return sampler

    patch.setenv("TOKENDRAW_SAMPLER", "triton-gumbel")
    patch.setattr(tokendraw, "load_sampler", load_sampler)
    patch.setattr(_replacement, "_version_and_seeding", lambda name: ("0.1.0", "counter"))
    return CPU


def model_logits(rows, vocab_size, padding=64):
    """Logits as vLLM's models return them: rows of a multiple of 64 elements, cut to the vocabulary."""
    width = -(-vocab_size // padding) * padding
    return torch.zeros(rows, width, dtype=MODEL_DTYPE)[:, :vocab_size]


def batches(max_rows, editing):
    """Requests of a batch: those of each kind, and of every kind beside one another.

    :param editing: parameters of a request that edits its logits.
    """
    for rows in (1, 3, max_rows):
        kinds = [(request,) for request in REQUESTS] + [REQUESTS]
        for kind in kinds:
            requests = [kind[i % len(kind)] for i in range(rows)]
            yield requests
            yield [{**requests[0], **editing}, *requests[1:]]
