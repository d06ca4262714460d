"""Requests with XTC and ``temperature_last``, alone and beside all other filters, and rows of few and many tokens."""

from dataclasses import replace

import numpy as np

from tokendraw import SamplingParams

LIKELY = (100, 101, 102)
"""Ids of the three likely tokens in rows of requests with even numbers."""


def interval_requests(rng, count, *, is_described=False):
    """Make requests of every filter order, with XTC or without.

    :param is_described: whether they ask for logprobs.
    """
    requests = [
        SamplingParams(
            temperature=float(rng.choice([0.7, 1.0, 1.3, 0.0], p=[0.4, 0.2, 0.3, 0.1])),
            top_k=int(rng.choice([0, 0, 40, 500])),
            top_p=float(rng.choice([1.0, 0.3, 0.9])),
            min_p=float(rng.choice([0.0, 1e-3, 0.1])),
            filters={"p_less": 1.0} if rng.random() < 0.2 else None,
            xtc_probability=float(rng.choice([0.0, 0.5, 1.0])),
            xtc_threshold=float(rng.choice([0.3, 0.1, 1e-3])),
            filter_order=str(rng.choice(["top_k_first", "joint", "temperature_last", "temperature_last"])),
            seed=int(rng.integers(-(2**40), 2**40)),
            logprobs=int(rng.choice([0, 3])) if is_described else None,
            logprob_token_ids=(1, *LIKELY[:2]) if is_described else None,
        )
        for _ in range(count)
    ]
    # XTC looks at what a min-p behind top-p left, and at a wide nucleus alone.
    wide = {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "filters": None, "xtc_probability": 1.0}
    last = {"min_p": 1e-3, "xtc_threshold": 0.3, "filter_order": "temperature_last"}
    requests[0] = replace(requests[0], **wide | last)
    requests[2] = replace(requests[2], **wide, min_p=0.0, xtc_threshold=0.1, filter_order="top_k_first")
    # In the order joint a floor may leave less than the mass of top-p.
    least = {"temperature": 1.0, "top_p": 0.999, "min_p": 0.5, "xtc_threshold": 0.341}
    requests[4] = replace(requests[4], **wide | least, filter_order="joint")
    return requests


def interval_logits(rng, requests, size):
    """Make logits [rows, size] float32: three likely tokens beside many, or any number of them.

    :param requests: [rows]: the number of each row's request.
    """
    spread = np.where(requests % 2 == 0, 0.5, rng.choice([0.5, 3.0, 6.0], len(requests)))
    logits = rng.normal(0, spread[:, None], (len(requests), size)).astype(np.float32)
    logits[np.ix_(requests % 2 == 0, LIKELY)] = 8.0, 7.9, 7.7
    return logits
