"""Runs the kernels of triton-gumbel on CPU tensors, in a process of its own: TRITON_INTERPRET counts at import.

``python triton_kernels.py kit`` prints the lines of the conformance kit as JSON; ``python triton_kernels.py draws``
compares seeded draws with the float64 reference and prints how many were judged and which are wrong.
"""

import json
import os
import sys
import warnings
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter(
    "ignore"
)  # the interpreter computes with numpy, which tells of every overflow to infinity

import numpy as np  # noqa: E402
import torch  # noqa: E402

from tokendraw import Need, SamplingMetadata, SamplingParams  # noqa: E402
from tokendraw.testing import Subject, reference, run  # noqa: E402
from tokendraw.testing.logits_families import FAMILIES  # noqa: E402
from tokendraw_triton_gumbel import plugin  # noqa: E402
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler  # noqa: E402

LINES = (
    "output",
    "padding is never read",
    "greedy rows",
    "valid flag",
    "seeds at the edges",
)
"""Properties that need few draws: the interpreter takes milliseconds for a row."""
REQUESTS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
    for t in (1.0, 0.6)
    for k in (0, 1, 40, 200, 4500)
    for p in (1.0, 0.9, 0.3)
    for m in (0.0, 0.05)
    for order in ("top_k_first", "joint")
]


def kit():
    capabilities = plugin.tokendraw_describe().operations["sample"]
    subject = Subject(
        "triton-gumbel",
        capabilities=replace(capabilities, device_types=("cpu",), compute_capability=None),
        device="cpu",
        build=lambda need: TritonGumbelSampler(torch.device("cpu"), need),
        quick=True,
    )
    return {line.name: (str(line.status), line.detail) for line in run(subject, only=LINES).lines}


def draws():
    """Every way through the filters: few candidates, many, more than fit, ties, and rows without a bound."""
    rng = np.random.default_rng(0)
    judged, wrong = 0, []
    for size, rows, dtype in (
        (1, 4, "fp32"),
        (31, 10, "fp64"),
        (1025, 10, "fp64"),
        (3000, 10, "fp32"),
        (9000, 8, "fp32"),
    ):
        sampler = TritonGumbelSampler(torch.device("cpu"), Need(gumbel_dtype=dtype))
        for name, family in FAMILIES.items():
            logits = np.stack([family(rng, size) for _ in range(rows)])
            picked = rng.integers(0, len(REQUESTS), rows)
            params = [replace(REQUESTS[i], seed=int(i)) for i in picked]
            metadata = SamplingMetadata.from_params(params, positions=range(rows))
            tokens = sampler.sample(torch.from_numpy(logits), metadata).token_ids.tolist()
            for i, (row, request, token) in enumerate(zip(logits, params, tokens, strict=True)):
                prepared = reference.prepare(row, request)
                expected, lead = reference.draw(prepared, request.seed, i, dtype)
                if prepared.certain and lead > reference.NEAR_TIE:
                    judged += 1
                    if token != expected:
                        wrong.append([size, name, str(request), token, expected])
    return {"judged": judged, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps({"kit": kit, "draws": draws}[sys.argv[1]]()))
