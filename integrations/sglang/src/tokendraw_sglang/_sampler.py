"""A subclass of SGLang's sampler that draws through tokendraw.

SGLang draws some batches, and all batches after a failed call, as it does without the adapter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any

import torch
from sglang.srt.layers import sampler as engine
from sglang.srt.layers.logprob_processor import LogprobResult
from sglang.srt.runtime_context import get_exec, get_spec
from torch import Tensor

import tokendraw
from tokendraw.engines import format_error, rank_error
from tokendraw_sglang._engine import (
    FELL_BACK,
    OWN_LOGPROBS,
    PROCESS,
    default_backend,
    is_deterministic,
    log,
    mode_of,
    without_seeds,
)
from tokendraw_sglang._logprobs import RowLogprobs, Scorer
from tokendraw_sglang._requests import Last, warm_up

Walk = tuple[Tensor, Tensor, Tensor]
"""``predict`` [B * n], ``accept_index`` [B, depth] and the number of accepted drafts [B], all int32."""


def _need() -> tokendraw.Need:
    return tokendraw.Need(
        filter_orders=("joint",),
        logprobs_mode="temperature_logprobs",
        logprob_ranks=False,
        batch_invariant=is_deterministic(),
    )


def choose() -> dict[str, tuple[str, ...]] | str:
    """Choose for several ranks: the names of the plugins that can be loaded here, or why SGLang's own sampler stays."""
    try:
        draws = tokendraw.load_sampler(need=_need())
    except Exception as error:
        return format_error(error).removesuffix(".")
    for operation in ("score", "verify"):
        with contextlib.suppress(tokendraw.TokendrawError):
            draws.prepare(operation)
    return draws.choices


def load(names: dict[str, tuple[str, ...]] | None = None) -> tuple[TokendrawSampler, str]:
    """Make SGLang's sampler with the best for the device; return it, and the name and version of its plugin.

    :param names: what the first of several ranks chose for all, by :func:`choose`; None: the best is chosen here.
    """
    draws = tokendraw.load_sampler(names, need=_need())
    versions = {candidate.name: candidate.version for candidate in tokendraw.discover()}
    return TokendrawSampler(draws, names), f"{draws.name} {versions[draws.name]}"


class TokendrawSampler(engine.Sampler):  # type: ignore[misc]
    """SGLang's sampler with tokendraw's draws."""

    def __init__(self, draws: tokendraw.Sampler, names: dict[str, tuple[str, ...]] | None = None) -> None:
        super().__init__()
        self.names = names
        """Of the plugins by operation, where several ranks draw the same tokens: then a failure raises."""
        self._draws: tokendraw.Sampler | None = draws
        """None: a call has failed, and SGLang draws."""
        has_scorer = (names is None or "score" in names) and not is_deterministic()
        self._scores: Scorer | None = Scorer(draws) if has_scorer else None
        """None: SGLang computes log-probabilities. The first rank has no scorer, or a score has failed, or inference
        is deterministic: SGLang's kernel gives them the bits that it gives tokens of a prompt."""
        self._batches, self._verifications = Last(), Last()
        self._is_warm = False
        self._preprocessed: Tensor | None = None

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[Any],
        positions: Tensor,
        **options: Any,
    ) -> Tensor:
        """Draw a token in each row, and fill in the requested log-probabilities, as SGLang's sampler does.

        :param positions: [B] integer: length of each sequence less one.
        :param options: further arguments of SGLang, as ``logprob_logits`` of a watermark; then SGLang draws the batch.
        :returns: [B] int32; int64 from SGLang where all rows are greedy.
        """
        logits = logits_output.next_token_logits
        arguments = (return_logprob, top_logprobs_nums, token_ids_logprobs, positions)
        if not self.is_ready(logits) or self._needs_sglang(sampling_info, options):
            return self._draw_by_sglang(logits_output, sampling_info, *arguments, **options)
        logits = self._preprocess_logits(logits, sampling_info)
        try:
            token_ids, masks = self._draw(logits, sampling_info, positions)
        except Exception as error:
            self.fall_back(error)
            self._preprocessed = logits
            return self._draw_by_sglang(logits_output, sampling_info, *arguments, **options)
        if return_logprob:
            wanted = (top_logprobs_nums, token_ids_logprobs)
            self._logprobs(logits, sampling_info, token_ids, *wanted).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        if masks is not None:
            logits_output.sampling_mask_output = self._build_sampling_mask_output(
                token_ids, masks, sampling_info.sampling_support_logprobs_capture_indices
            )
        return token_ids

    def is_ready(self, logits: Tensor) -> bool:
        """Compile in the first call, and return whether tokendraw draws: no call has failed."""
        self._warm_up(logits)
        return self._draws is not None

    def _logprobs(
        self, logits: Tensor, info: Any, token_ids: Tensor, top_nums: list[int], given_ids: list[Any]
    ) -> Any:
        """Compute SGLang's ``LogprobResult`` of drawn tokens; after a failed score, by SGLang's own functions."""
        temperatures = self.logprob_temperatures(info)
        rows = self.score(logits, token_ids, temperatures, top_nums, given_ids)
        if rows is not None:
            return LogprobResult(**rows.fields(top_nums, given_ids))
        scaled = logits if temperatures is None else logits.div_(temperatures)
        return self.output_logprob_processor.compute_logprobs(
            torch.log_softmax(scaled, dim=-1), top_nums, given_ids, token_ids
        )

    def logprob_temperatures(self, info: Any) -> Tensor | None:
        """Return the temperatures [B, 1] of log-probabilities; None: these are taken before temperature."""
        if info.is_all_greedy or engine.SGLANG_RETURN_ORIGINAL_LOGPROB:
            return None
        temperatures: Tensor = info.temperatures
        return temperatures

    def score(self, *arguments: Any, **options: Any) -> RowLogprobs | None:
        """Compute log-probabilities, see :meth:`Scorer.rows`; None: a score has failed, and SGLang computes them."""
        if self._scores is None:
            return None
        try:
            return self._scores.rows(*arguments, **options)
        except Exception as error:
            self._leave_logprobs(error)
            return None

    def verify(self, drafts: Any, batch: Any, logits: Tensor) -> Walk:
        """Verify drafts, SGLang's ``verify_input`` of B requests with n nodes each, by edited logits [B * n, V]."""
        assert self._draws is not None
        info, mode = batch.sampling_info, mode_of(get_spec())
        if mode is None:
            metadata = self._verifications.metadata(info, drafts.positions, drafts.draft_token_num)
            return _walk(drafts, self._draws.sample(logits, metadata).token_ids)
        metadata = self._verifications.metadata(info, batch.seq_lens)
        chains = _chains(drafts)
        return _walk_of_chains(self._draws.verify(logits, chains, metadata, mode=mode), chains)

    def _needs_sglang(self, info: Any, options: dict[str, Any]) -> bool:
        """Return whether SGLang has to draw a batch: its other results depend on SGLang's way to draw."""
        return (
            info.is_all_greedy
            or (info.sampling_mask_batch_indices is not None and self._masking is None)
            or any(value is not None for value in options.values())
        )

    @functools.cached_property
    def _masking(self) -> tokendraw.Sampler | None:
        """Draws batches with sampling masks; loaded for the first one. None: its plugin tells no thresholds."""
        assert self._draws is not None
        with contextlib.suppress(tokendraw.SamplerUnavailableError):
            need = dataclasses.replace(_need(), threshold=True)
            return tokendraw.load_sampler(self._draws.choices, need=need)
        return None

    def _draw(self, logits: Tensor, info: Any, positions: Tensor) -> tuple[Tensor, Any]:
        """Draw the tokens [B], and weigh what the requests with a sampling mask keep; None: there are none."""
        rows = info.sampling_mask_batch_indices
        draws = self._draws if rows is None else self._masking
        assert draws is not None
        output = draws.sample(logits, self._batches.metadata(info, positions))
        # The dtype of SGLang's draws, so that a rank that fails can still be synchronised with the others.
        token_ids = output.token_ids.to(torch.int32)
        if output.threshold is None:
            return token_ids, None
        kept = tokendraw.kept_mask(logits, output.threshold, output.ceiling)[rows]
        # Of tied best tokens the mask of a greedy request has the drawn one alone, as SGLang's.
        is_drawn = torch.arange(logits.shape[1], device=logits.device) == token_ids[rows].unsqueeze(1)
        kept &= is_drawn | (info.top_ks[rows] > 1).unsqueeze(1)
        weights = (logits[rows] / info.temperatures[rows]).softmax(-1).masked_fill(~kept, 0.0)
        return token_ids, engine._SamplingMaskCapture(weights, None, None, rows)

    def _draw_by_sglang(self, logits_output: Any, info: Any, *arguments: Any, **options: Any) -> Tensor:
        with get_exec().kernel.override(sampling_backend=default_backend()):
            token_ids: Tensor = super().forward(logits_output, without_seeds(info), *arguments, **options)
        return token_ids

    def _preprocess_logits(self, logits: Tensor, sampling_info: Any) -> Tensor:
        if logits is self._preprocessed:
            self._preprocessed = None  # the next batch may lie in the same tensor
            return logits
        processed: Tensor = super()._preprocess_logits(logits, sampling_info)
        return processed

    def _warm_up(self, logits: Tensor) -> None:
        """Compile on the first batch: SGLang's warm-up request, unless the server skips it."""
        if self._draws is None or self._is_warm:
            return
        self._is_warm = True
        try:
            spec = None if PROCESS.verifier is None else get_spec()
            width = 1 if spec is None else spec.speculative_num_draft_tokens or 2
            warm_up(self._draws, logits, width=width, mode=None if spec is None else mode_of(spec))
        except Exception as error:
            self.fall_back(error)
            return
        if self._scores is None or not logits.is_cuda:
            return
        has_temperature = not engine.SGLANG_RETURN_ORIGINAL_LOGPROB
        try:
            self._scores.warm_up(logits, width=width, has_temperature=has_temperature)
        except Exception as error:
            self._leave_logprobs(error)

    def _leave_logprobs(self, error: Exception) -> None:
        """Leave all later log-probabilities to SGLang, with a line in the log; raise beside other ranks."""
        if self.names is not None:
            raise rank_error(error) from error
        self._scores = None
        log.warning(OWN_LOGPROBS, format_error(error).removesuffix("."))

    def fall_back(self, error: Exception) -> None:
        """Leave all later batches to SGLang, with a line in the log; raise beside other ranks, which draw on."""
        if self.names is not None:
            raise rank_error(error) from error
        assert self._draws is not None
        log.warning(FELL_BACK, self._draws.name, format_error(error).removesuffix("."), default_backend())
        self._draws = None


def _walk(drafts: Any, tokens: Tensor) -> Walk:
    """Accept the drafts that equal the token of ``tokens`` [B * n] drawn in the row before them."""
    from sglang.srt.speculative import eagle_utils

    candidates, device = drafts.draft_token.reshape(-1, drafts.draft_token_num), tokens.device
    shape = (len(candidates), drafts.max_tree_depth)
    result: Walk = eagle_utils.verify_tree_greedy_func(
        predicts=torch.zeros(len(tokens), dtype=torch.int32, device=device),
        accept_index=torch.full(shape, -1, dtype=torch.int32, device=device),
        accept_token_num=torch.empty(len(candidates), dtype=torch.int32, device=device),
        candidates=candidates,
        retrieve_index=drafts.retrieve_index,
        retrieve_next_token=drafts.retrieve_next_token,
        retrieve_next_sibling=drafts.retrieve_next_sibling,
        target_predict=tokens.view_as(candidates),
        topk=drafts.tree_topk,
    )
    return result


def _chains(drafts: Any) -> tokendraw.Drafts:
    width, probs = drafts.draft_token_num, drafts.draft_probs
    tokens = drafts.draft_token.reshape(-1, width)
    return tokendraw.Drafts(
        draft_token_ids=tokens[:, 1:],
        cu_num_logits=torch.arange(0, drafts.draft_token.numel() + 1, width, device=tokens.device),
        draft_probs=probs.reshape(-1, probs.shape[-1]),
        num_drafts=(width - 1,) * len(tokens),
    )


def _walk_of_chains(output: tokendraw.VerifyOutput, chains: tokendraw.Drafts) -> Walk:
    step = torch.arange(output.token_ids.shape[1], device=output.token_ids.device)
    is_emitted = step <= output.num_accepted.unsqueeze(1)
    rows = (chains.cu_num_logits[:-1].unsqueeze(1) + step).masked_fill(~is_emitted, -1)
    return output.token_ids.clamp(min=0).to(torch.int32).view(-1), rows.to(torch.int32), output.num_accepted
