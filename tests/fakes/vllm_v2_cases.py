"""Batches for vLLM's runners, as a table: parameters of requests, and where their tokens are drawn.

Each batch runs in :data:`ENGINES` with the adapter and without it. A new case is a line of vllm_v2_cases.txt; what its
columns do not say is tested in tests/engines/test_vllm_runner.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import call_tables

V, HIDDEN_SIZE = 1000, 64
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
EXACT, EXACT_DRAFTS, EXACT_CACHED = "exact", "exact, drafts", "exact, cached prefixes"
"""Engines of the model of :mod:`exact_model`: their seeded tokens have one right value."""
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
    EXACT: {},
    EXACT_DRAFTS: NGRAMS,
    EXACT_CACHED: {"enable_prefix_caching": True},
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
FLOOR_AND_BIAS = {"min_p": 0.2, "logit_bias": {77: 4.0, 23: -4.0}}  # vLLM refuses both beside drafts
FILTERS = {"top_k": 12, "top_p": 0.9}
DRAWS = 400
STOPS = [*range(0, V, 9), 254, 374, 840]  # the last are of the greedy requests; vLLM takes up to 128


def asking(rules: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Parameters of a request with rules for tokendraw."""
    return {**parameters, "extra_args": {"tokendraw": rules}}


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
    equals: str = ""
    """The case whose tokens it has, too."""
    is_run_by_v1: bool = False
    """Whether the V1 runner runs it too."""
    is_run_alone: bool = True
    """Whether the case runs without the adapter too. vLLM's kernel that draws behind a rejected draft of a draft model
    does not run in Triton's interpreter."""


_LINES = dict(call_tables.pairs(Path(__file__).with_suffix(".txt")))
MATES: list[dict[str, Any]] = eval(_LINES.pop("MATES"))
JUDGED: list[dict[str, Any]] = eval(_LINES.pop("JUDGED"))
CASES: dict[str, Case] = {name: eval(case) for name, case in _LINES.items()}

V1_CASES = tuple(name for name, case in CASES.items() if case.is_run_by_v1)
