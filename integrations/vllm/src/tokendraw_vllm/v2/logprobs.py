"""Log-probabilities of the V2 runner, and the filtered logits that it reads for some.

tokendraw's ``score`` takes the place of ``compute_topk_scores``, in which vLLM computes all log-probabilities of the
runner, for draws, verifications and prompts: of the token of each row, and of the N best or of ids by request, and the
token's rank. vLLM searches the N best, normalises and ranks in kernels of their own, each of which reads the logits;
tokendraw reads the logits once or twice. The values are vLLM's but for the last bits of float32. Among equal logits the
lowest ids are best.

vLLM reads filtered logits for log-probabilities of the modes ``processed_*`` and for sampling masks. tokendraw draws
and verifies without writing such logits. Where a batch needs them, they are written behind the draw or the
verification, from the thresholds of its rows.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tokendraw
from tokendraw import BatchFacts, Need, PluginError, SamplerOutput, SamplingMetadata, VerifyOutput, kept_mask
from tokendraw_vllm import _parts
from tokendraw_vllm._parts import Names, NamesOfFirst

FUNCTION = "compute_topk_scores"
_RUNNER = "vllm.v1.worker.gpu"
_CALLERS = ("sample.sampler", "sample.prompt_logprob", "spec_decode.rejection_sampler")
_MAX_BEST = 1024
"""The largest number of best tokens that kernels of tokendraw order."""
_WARMUP_ROWS = (1, 256)
_WARMUP_THREADS = 8 if sys.version_info >= (3, 12) else 1
"""Threads that parse source at once, as Triton does, make Python 3.11 raise."""

Layouts = Sequence[tuple[int, torch.dtype]]
"""Row strides and dtypes of logits."""


def max_best_of(config: Any) -> int:
    """Return the largest number of best tokens that tokendraw serves under a configuration of vLLM."""
    allowed = getattr(getattr(config, "model_config", None), "max_logprobs", None)
    return allowed if isinstance(allowed, int) and 0 <= allowed <= _MAX_BEST else _MAX_BEST


class Scorer:
    """Scores the tokens of rows."""

    def __init__(self, provider: Any, max_best: int) -> None:
        self.name: str = provider.name
        self._provider, self._max_best = provider, max_best
        self._described = functools.cache(_described)

    def serves(self, logits: Tensor, num_best: int, num_own: int) -> bool:
        """Return whether the batch is tokendraw's: not where best tokens stand beside ids by request."""
        rows, vocab_size = logits.shape
        return rows > 0 and num_best <= min(self._max_best, vocab_size) and not (num_best and num_own)

    def score(
        self, logits: Tensor, token_ids: Tensor, num_best: int, own_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute ids and values of the token of each row and of others, and the ranks of the tokens.

        Waits for no device.

        :param num_best: N; 0 beside ``own_ids``.
        :param own_ids: [B, M] integer, -1 behind the last of a row; None: the N best are wanted.
        :returns: [B, 1 + max(N, M)] int64, the same float32, and [B] int64. Padding has the id 0 and -inf.
        """
        metadata = self._described(num_best) if own_ids is None else _described(0, own_ids)
        scored = self._provider.score(logits, token_ids, metadata).logprobs
        others, values = scored.token_ids[:, 1:], scored.logprobs
        if own_ids is not None:
            others, values = own_ids.clamp(min=0), torch.cat((values, scored.given_logprobs), dim=1)
        # ids outside the vocabulary stay in the first column, as in vLLM
        return torch.cat((token_ids.unsqueeze(-1), others), dim=1), values, scored.ranks

    def warm_up(self, device: torch.device, vocab_size: int, layouts: Layouts) -> None:
        """Score made-up rows of each layout, so that no request compiles a kernel."""
        powers = (1 << bit for bit in range(self._max_best.bit_length()))
        numbers = [number for number in {0, *powers, self._max_best} if number <= vocab_size]
        for stride, dtype in layouts:
            logits = torch.zeros(max(_WARMUP_ROWS), stride, dtype=dtype, device=device)[:, :vocab_size]
            tokens = torch.zeros(len(logits), dtype=torch.int64, device=device)
            self.score(logits[:1], tokens[:1], 0, tokens[:1, None].to(torch.int32))
            batches = [(logits[:rows], tokens[:rows], best) for rows, best in product(_WARMUP_ROWS, numbers)]
            with ThreadPoolExecutor(_WARMUP_THREADS) as pool:
                for _ in pool.map(self.score, *zip(*batches, strict=True)):
                    pass


scorers: dict[tuple[torch.device, bool], Scorer] = {}
"""By device, and whether logits are returned."""


def install() -> None:
    original = getattr(importlib.import_module(f"{_RUNNER}.sample.logprob"), FUNCTION)
    for caller in _CALLERS:
        module = importlib.import_module(f"{_RUNNER}.{caller}")
        if getattr(module, FUNCTION, None) is original:
            _parts.replace_once(module, FUNCTION, lambda own: _parts.served(own, _Call, _scored))


class _Call(NamedTuple):
    """The arguments of ``compute_topk_scores``."""

    logits: Tensor
    num_logprobs: int
    sampled_token_ids: Tensor
    cu_num_logits: list[int] | Tensor | None = None
    logprob_token_ids_state: Any = None
    expanded_idx_mapping: Tensor | None = None
    max_per_req_token_ids: int = 0
    logits_mode: bool = False


def _scored(call: _Call) -> Any:
    from vllm.v1.outputs import LogprobsTensors

    key = call.logits.device, call.logits_mode
    scorer = scorers.get(key)
    if scorer is None or not scorer.serves(call.logits, call.num_logprobs, call.max_per_req_token_ids):
        return None
    bounds, is_tensor = call.cu_num_logits, isinstance(call.cu_num_logits, Tensor)
    try:
        scores = scorer.score(call.logits, call.sampled_token_ids, call.num_logprobs, _own_ids(call))
        return LogprobsTensors(*scores, *((None, bounds) if is_tensor else (bounds, None)))
    except Exception as error:
        _parts.give_up(_parts.SCORING, scorer.name, error)
        scorers.pop(key, None)
        return None


def _own_ids(call: _Call) -> Tensor | None:
    """Gather the ids of each row's request on the device: [B, M] int32, -1 behind the last of a row."""
    count, state, slots = call.max_per_req_token_ids, call.logprob_token_ids_state, call.expanded_idx_mapping
    if not count:
        return None
    ids: Tensor = state.token_ids.gpu[slots, :count]
    is_behind = torch.arange(count, device=ids.device) >= state.num_token_ids.gpu[slots].unsqueeze(-1)
    return ids.masked_fill_(is_behind, -1)


def _described(num_best: int, own_ids: Tensor | None = None) -> SamplingMetadata:
    """Describe rows of unchanged logits, without temperature and filters."""
    facts = BatchFacts(any_greedy=False, max_logprobs=num_best)
    return SamplingMetadata(logprob_token_ids=own_ids, facts=facts)


def choose_scorer(device: torch.device, need: Need) -> Names:
    names: Names = tokendraw.load("score", _best_scorer(device, need), device=device, need=need).choices
    return names


def _best_scorer(device: torch.device, need: Need) -> Names:
    resolution = tokendraw.resolve(operation="score", device=device, need=need)
    _parts.check_faster(resolution.chosen, "scorer", device)
    return {"score": resolution.names}


def load_scorer(
    device: torch.device,
    vocab_size: int,
    layouts: Layouts,
    *,
    need: Need,
    max_best: int,
    names: NamesOfFirst = None,
) -> None:
    """Load the scorer for a device, and compile its kernels."""
    # by its name, so that no other plugin takes over after a failure
    chosen = _parts.chosen_names(names) or _best_scorer(device, need)
    scorer = Scorer(tokendraw.load("score", chosen, device=device, need=need), max_best)
    if device.type != "cpu":
        scorer.warm_up(device, vocab_size, layouts)
    returns_logits = need.logprobs_mode == "raw_logits"
    scorers[torch.empty(0, device=device, dtype=torch.float32).device, returns_logits] = scorer


_INF = float("inf")


def are_processed(logprobs_mode: str) -> bool:
    from vllm.config.model import PROCESSED_LOGPROBS_MODES

    return logprobs_mode in PROCESSED_LOGPROBS_MODES


def needs_processed(sampler: Any, returns_logprobs: Callable[[], bool]) -> bool:
    return bool(sampler.return_sampling_mask or (are_processed(sampler.logprobs_mode) and returns_logprobs()))


def processed_logits(logits: Tensor, output: SamplerOutput | VerifyOutput, temperature: Tensor) -> Tensor:
    """Return logits [rows, V] float32 with -inf where a filter dropped the token, not divided by the temperature.

    :param logits: [rows, V], as the sampler got them. Not changed.
    :param temperature: [rows] float32: a greedy row keeps all its logits, as in vLLM.
    """
    threshold, ceiling = output.threshold, output.ceiling
    if threshold is None:
        raise PluginError("filtered logits need the thresholds that the sampler was loaded for, found none")
    is_greedy = temperature == 0.0
    kept = kept_mask(
        logits,
        torch.where(is_greedy, -_INF, threshold),
        None if ceiling is None else torch.where(is_greedy, _INF, ceiling),
    )
    floats = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return floats.masked_fill_(kept.logical_not_(), -_INF)
