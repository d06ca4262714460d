"""The V1 runner on a CPU: replaces ``TopKTopPSampler``, which draws after temperature and min-p, in every process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tokendraw import BatchFacts, Need, SamplingMetadata
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import is_tested
from tokendraw_vllm._parts import ATTRIBUTE, choose_for_all, names_or_reason
from tokendraw_vllm._parts import V1_SAMPLER as _PART
from tokendraw_vllm._replacement import Replacement, choose, load
from tokendraw_vllm.v2.proof import made_up_logits, pass_or_stay, reference, require

MIN_CPU_VOCABULARY = 32_000
"""Least V that a compiled sampler draws on a CPU. With fewer tokens vLLM is quicker where a single request has top-k
alone, and the choice must not depend on the batch neighbours.
"""
MIN_REFERENCE_VOCABULARY = 100_000
"""The same for the reference in plain PyTorch, unless TOKENDRAW_SAMPLER names it."""

Generators = Mapping[int, torch.Generator]
"""Generator of each row whose request has a seed."""


def install() -> None:
    """Have every ``TopKTopPSampler`` of this process draw through tokendraw, existing instances included."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    def drawing(original: Any) -> Any:
        def call(
            self: Any, logits: Tensor, generators: Generators, k: Tensor | None, p: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            ids = _draw(self, logits, generators, k, p, original)
            return original(self, logits, generators, k, p) if ids is None else (ids, None)

        return call

    _parts.replace_once(TopKTopPSampler, "__call__", drawing)


def _draw(
    sampler: Any, logits: Tensor, generators: Generators, k: Tensor | None, p: Tensor | None, original: Any
) -> Tensor | None:
    """Draw a token in each row: ids [B] int64; None if vLLM has to.

    vLLM draws from all tokens in C++, as quickly as plain PyTorch. Where this is tokendraw's sampler, vLLM draws
    batches without filters, and seeded rows without filters in every other batch, so that their tokens do not depend
    on batch neighbours. A specialised sampler draws all batches.
    """
    if ATTRIBUTE not in vars(sampler):  # the first batch
        vars(sampler)[ATTRIBUTE] = _load(sampler, logits.device, logits.shape[1])
    replacement: Replacement | None = vars(sampler)[ATTRIBUTE]
    if replacement is None or _PART not in replacement.serves:
        return None
    if not replacement.is_specialised and k is None and p is None:
        return None
    rows = [] if replacement.is_specialised else _unfiltered_rows(generators, k, p, logits.shape[1])
    if not rows:
        return _attempt(replacement, logits, generators, k, p)
    is_filtered = torch.ones(logits.shape[0], dtype=torch.bool, device="cpu")
    is_filtered[rows] = False
    index = is_filtered.nonzero().view(-1)
    if not len(index):
        return None
    own = {i: generators[row] for i, row in enumerate(index.tolist()) if row in generators}
    filters = (None if column is None else column[index] for column in (k, p))
    drawn = _attempt(replacement, logits[index], own, *filters)
    if drawn is None:
        return None
    ids, _ = original(sampler, logits[rows], {i: generators[row] for i, row in enumerate(rows)}, None, None)
    tokens = drawn.new_empty(logits.shape[0])
    tokens[index], tokens[rows] = drawn, ids.long()
    return tokens


def _attempt(replacement: Replacement, logits: Tensor, *given: Any) -> Tensor | None:
    return replacement.attempt(
        _PART, lambda: replacement.sampler.sample(logits, _metadata(logits, *given)).token_ids
    )


def _load(sampler: Any, device: torch.device, vocab_size: int) -> Replacement | None:
    import vllm.envs as envs
    from vllm.config.model import PROCESSED_LOGPROBS_MODES

    mode, reason = sampler.logprobs_mode, None
    if device.type != "cpu":
        reason = "on a GPU tokendraw draws in the V2 runner alone. Set VLLM_USE_V2_MODEL_RUNNER=1 to take it"
    elif vocab_size < MIN_CPU_VOCABULARY:
        reason = f"a vocabulary of {vocab_size} is below {MIN_CPU_VOCABULARY}, where vLLM's own may be quicker on a CPU"
    elif mode in PROCESSED_LOGPROBS_MODES:
        reason = f"logprobs_mode={mode!r} returns the filtered logits, which vLLM's own writes"
    if reason is not None:
        _parts.log_kept(reason, part=_PART)
        return None
    need = Need(
        gumbel_dtype="fp64" if sampler.use_fp64_gumbel else "fp32",
        batch_invariant=bool(envs.VLLM_BATCH_INVARIANT),
    )
    reference_is_faster = vocab_size >= MIN_REFERENCE_VOCABULARY
    names = choose_for_all(  # all ranks draw the batch
        lambda: names_or_reason(lambda: choose(device, need, reference_is_faster=reference_is_faster))
    )
    replacement = load(_PART, device, need, reference_is_faster=reference_is_faster, names=names)
    if replacement is None or is_tested():
        return replacement

    def check() -> None:
        """Draw a made-up batch, and compare it with native's and with what vLLM's own filters keep."""
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        logits = made_up_logits(4, vocab_size, torch.float32, device)
        k = torch.tensor([6, vocab_size, 12, vocab_size], dtype=torch.int32, device=device)
        p = torch.tensor([1.0, 0.9, 0.8, 1.0], dtype=torch.float32, device=device)
        generators = [{row: torch.Generator().manual_seed(row) for row in range(4)} for _ in range(2)]
        mine, own = (_metadata(logits, each, k, p) for each in generators)
        drawn = replacement.sampler.sample(logits, mine).token_ids
        expected = reference(device, need).sample(logits, own).token_ids
        require(drawn, expected, apply_top_k_top_p(logits.clone(), k, p))

    return None if pass_or_stay(_PART, replacement.by, {_PART: check}) else replacement


def _unfiltered_rows(
    generators: Generators, k: Tensor | None, p: Tensor | None, vocab_size: int
) -> list[int]:
    if not generators:
        return []
    top_k = [vocab_size] * (max(generators) + 1) if k is None else k.tolist()
    top_p = [1.0] * (max(generators) + 1) if p is None else p.tolist()
    return sorted(row for row in generators if top_k[row] >= vocab_size and top_p[row] >= 1.0)


def _metadata(logits: Tensor, generators: Generators, k: Tensor | None, p: Tensor | None) -> SamplingMetadata:
    """Describe a batch of logits after vLLM's temperature and min-p.

    V1 passes no positions, so the generator of a request gives its rows a seed of 63 bits each, one a step. A ``k`` of
    V or more is off, and a ``p`` of 1.
    """
    rows = logits.shape[0]
    facts: dict[str, Any] = {}
    noise: dict[str, Any] = {}
    if k is not None:
        active = k[(k > 0) & (k < logits.shape[1])]
        facts["max_top_k"] = int(active.max()) if len(active) else 0
        facts["all_top_k"] = len(active) == len(k) > 0
    if generators:
        seeds, seeded = [0] * rows, [False] * rows
        for row, generator in generators.items():
            seeded[row] = True
            drawn = torch.randint(0, 2**63 - 1, (), generator=generator, dtype=torch.int64, device="cpu")
            seeds[row] = int(drawn)
        noise["seed"] = torch.tensor(seeds, dtype=torch.int64, device="cpu")
        noise["positions"] = torch.zeros_like(noise["seed"])
        if len(generators) < rows:
            noise["seeded"] = torch.tensor(seeded, device="cpu", dtype=torch.bool)
    return SamplingMetadata(
        top_k=k,
        top_p=p,
        facts=BatchFacts(any_greedy=False, all_seeded=len(generators) == rows, **facts),
        **noise,
    )
