"""Batches for vLLM's runners, as a table: parameters of requests, and where their tokens are drawn.

Each batch runs in :data:`ENGINES` with the adapter and without it. A new case is a line of vllm_v2_cases.txt; what its
columns do not say is tested in tests/engines/test_vllm_runner.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import call_tables

V = 1000
PROMPTS = [[5 + row, 6, 7 + 3 * row, 8] for row in range(6)]
LONG = [[(3 * i + 7 * row) % 300 for i in range(90)] for row in range(6)]
"""Longer than the tokens of a step, so that vLLM reads them in parts; six fill the blocks while they generate."""

FILTERED = "drafts, filtered logits"
"""An engine that returns filtered log-probabilities and sampling masks."""
NGRAMS = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
}
DRAWN = "drawn drafts"
"""An engine with a draft model, whose drafts are drawn: the model itself, unless ``speculative_config`` names one."""
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafts": NGRAMS,
    DRAWN: {
        "speculative_config": {
            "method": "draft_model",
            "num_speculative_tokens": 3,
            "draft_sample_method": "probabilistic",
        }
    },
    FILTERED: NGRAMS | {"logprobs_mode": "processed_logprobs", "return_sampling_mask": True},
}
"""Options of vLLM, beside those of every engine."""

MODEL, EDITED, VERIFIED = "model's logits", "edited logits", "verification"
VLLM, VLLM_VERIFIED = "vLLM", "vLLM's verification"
DRAFTED, VLLM_DRAFTED = "drafts", "vLLM's drafts"
"""Where the tokens of a step are drawn: by tokendraw from the model's logits, by tokendraw from edited logits, by
tokendraw's verification of drafts, by vLLM, or by vLLM's verification. A step with edits in some rows has two places.
Drafts of a draft model are drawn by tokendraw or by vLLM.
"""
SCORED = "tokendraw's scores"
"""Log-probabilities of a step or of a prompt by tokendraw."""
WITHOUT_ADAPTER = {MODEL: VLLM, EDITED: VLLM, VERIFIED: VLLM_VERIFIED, DRAFTED: VLLM_DRAFTED}
"""The places of the same steps without the adapter."""

GREEDY = {"temperature": 0.0}
ONE = {"temperature": 0.9, "top_k": 1}  # one token to draw, and no batch of greedy requests, which is vLLM's
COLD = {"temperature": 0.01, "top_k": 5}
"""The best token is drawn, and others are kept. vLLM takes no temperature below."""
SEEDED = {"temperature": 0.8, "top_k": 20, "seed": 3}
UNFILTERED = {"temperature": 0.8, "seed": 8}
BIAS = {"logit_bias": {V - 1: -1.0}}
FILTERS = {"top_k": 12, "top_p": 0.9}
DRAWS = 400
STOPS = [*range(0, V, 9), 254, 374, 840]  # the last are of the greedy requests; vLLM takes up to 128


def asking(rules: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Parameters of a request with rules for tokendraw."""
    return {**parameters, "extra_args": {"tokendraw": rules}}


RULED = asking({"xtc_probability": 1.0, "xtc_threshold": 0.1}, **SEEDED)


@dataclass(frozen=True)
class Case:
    """A batch."""

    requests: list[dict[str, Any]]
    places: set[str]
    """Where tokendraw is to draw, or vLLM, with the adapter."""
    engine: str = "plain"
    prompts: list[list[int]] = field(default_factory=lambda: PROMPTS)
    """One for each request; fewer are repeated."""
    as_vllm: bool = False
    """Whether tokens, log-probabilities and reasons to stop equal those without the adapter."""
    is_run_by_v1: bool = False
    """Whether the V1 runner runs it too."""
    is_run_alone: bool = True
    """Whether the case runs without the adapter too. vLLM's kernel that draws behind a rejected draft of a draft model
    does not run in Triton's interpreter."""


MATES: list[dict[str, Any]] = [
    GREEDY,
    {"temperature": 0.9, "top_p": 0.8, "max_tokens": 3},
    SEEDED,
    {"max_tokens": 7},
    {"temperature": 1.2, "top_k": 5, "min_p": 0.1, "presence_penalty": 1.0, "max_tokens": 5},
    {"temperature": 0.7, "top_k": 9, "max_tokens": 2, "seed": 12},
]
"""Requests that come and go; the fifth edits its logits while it lives."""
DRAFTING_MATES = [{**mate, "min_p": 0.0} for mate in MATES]  # vLLM refuses min_p and logit_bias beside drafts

CASES: dict[str, Case] = {
    name: eval(case) for name, case in call_tables.pairs(Path(__file__).with_suffix(".txt"))
}

V1_CASES = tuple(name for name, case in CASES.items() if case.is_run_by_v1)
