"""The proof of an untested vLLM: seams of the same form have the same meaning, part by part, before a request.

A made-up batch goes through new states of vLLM's own classes. tokendraw's tokens are held against those of native, its
reference in plain PyTorch, on the same rows, and against the tokens that vLLM's own edits and filters keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import tokendraw
from tokendraw import Drafts, Need, PluginError, Sampler, SamplingMetadata, SamplingParams
from tokendraw.engines import format_error
from tokendraw_vllm import _parts
from tokendraw_vllm._engine import untested
from tokendraw_vllm._parts import REFERENCE
from tokendraw_vllm._replacement import Replacement
from tokendraw_vllm.v2 import logprobs

if TYPE_CHECKING:
    from tokendraw.plugin import VerifyMode
    from tokendraw_vllm.v2.loading import Setup

_Asked = Sequence[Mapping[str, Any]]
_PLAIN: _Asked = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 6},
    {"top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
    {},
)
_EDITED: _Asked = (
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 1.0},
    {"logit_bias": {3: 2.5, 9: -4.0}},
    {"allowed_token_ids": [1, 4, 9, 17], "min_tokens": 2, "stop_token_ids": [4]},
)
_PROMPT = [1, 2, 3, 3]
"""Repeated in the later requests, so that each has a position of its own."""
_HEAD = 32
"""Number of logits of a row that matter. They differ by 1/4, exact in every dtype: no tie stands at a filter's edge."""
_STEPS = 4


def pass_or_stay(part: str, by: str, checks: Mapping[str, Callable[[], None]]) -> dict[str, str]:
    """Make the checks of parts of vLLM; return the reasons of those that stay vLLM's, with a line in the log for each.

    :param part: the part without which none of the others is replaced; its check comes first.
    :param by: of the replacement, for the log.
    """
    failed: dict[str, str] = {}
    for each, check in checks.items():
        if part not in failed:
            try:
                check()
            except Exception as error:  # of vLLM's too: what it needs has changed
                failed[each] = str(error) if isinstance(error, PluginError) else format_error(error)
    of_all = _parts.choose_for_all(lambda: failed)
    if of_all is not None and of_all != failed:
        raise RuntimeError(f"{untested()}, and ranks differ in what they prove: {of_all} and {failed}")
    for each, reason in failed.items():
        _parts.log_kept(f"{untested()}, and its proof failed: {reason}", part=each)
    if part not in failed:
        _parts.log_replaced(part, f"{by}, untested: its seams are whole and a proof passed")
    return failed


@dataclass(frozen=True)
class Proof:
    """The made-up batches of a sampler of vLLM."""

    make: Callable[[int], tuple[Any, Any]]
    """Makes a sampler of vLLM with a number of slots, with tokendraw in it, and its ``RequestState``."""
    verifier: Callable[[Any], Any]
    """Makes a ``RejectionSampler`` of such a sampler."""
    setup: Setup
    replacement: Replacement

    def apply(self) -> Replacement | None:
        """Leave to vLLM the parts that fail; None: all of them."""
        served = self.replacement
        checks: dict[str, Callable[[], None]] = {
            _parts.SAMPLER: lambda: self._draw(_PLAIN),
            _parts.EDITING: lambda: self._draw(_EDITED),
            _parts.VERIFICATION: self._verify,
            _parts.DRAFTING: self._draft,
            _parts.SCORING: self._score,
        }
        asked = {part: check for part, check in checks.items() if part in served.serves}
        failed = pass_or_stay(_parts.SAMPLER, served.by, asked)
        if _parts.SAMPLER in failed or _parts.SCORING in failed:
            logprobs.scorers.clear()
        for part in (*failed, *([_parts.DRAFTING] if _parts.VERIFICATION in failed else [])):
            served.leave(part)
        return None if _parts.SAMPLER in failed else served

    def _draw(self, asked: _Asked) -> None:
        batch = _Batch(self.make, asked, 0, self.setup.device)
        for step in range(_STEPS):
            logits = self._logits(len(asked), step)
            tokens, _ = batch.sampler.sample(logits, *batch.layout)
            kept = batch.sampler.apply_sampling_params(logits, *batch.layout)
            rows, params = (kept, [{}] * len(asked)) if asked is _EDITED else (logits, asked)
            require(tokens, self._native.sample(rows, batch.metadata(params)).token_ids, kept)

    def _verify(self) -> None:
        """Verify native's own tokens as drafts, and in every second request wrong tokens."""
        drafts, device, count = self.setup.drafts, self.setup.device, len(_PLAIN)
        most = drafts.most
        batch, logits = _Batch(self.make, _PLAIN, most, device), self._logits(count * (most + 1), 0)
        each = [asked for asked in _PLAIN for _ in range(most + 1)]
        given = self._native.sample(logits, batch.metadata(each)).token_ids.view(count, -1)[:, :most].clone()
        given[1::2] = (given[1::2] + 1) % self.setup.vocab_size
        batch.fed[:, 1:] = given
        verifier = self.verifier(batch.sampler)
        mapping, requests, on_host, positions, fed, steps, lengths = batch.layout
        offsets = torch.arange(0, len(mapping) + 1, most + 1, dtype=torch.int32, device=device)
        kept = batch.sampler.apply_sampling_params(logits, *batch.layout).view(count, most + 1, -1)
        drawn = self._logits(count * most, 1).float().view(count, most, -1)
        temperatures = [asked.get("temperature", 1.0) or 1.0 for asked in _PLAIN]
        divisors = torch.tensor(temperatures, dtype=torch.float32, device=device)
        modes: list[VerifyMode] = ["coupled"] if drafts.mode is None else ["coupled", drafts.mode]
        for mode in modes:
            by_slot = probs = None
            if mode != "coupled":
                by_slot = torch.empty_like(drawn).index_copy_(0, requests.long(), drawn)
                probs = (drawn / divisors[:, None, None]).softmax(-1).flatten(0, 1)
            _, tokens, counts = verifier._verify(
                logits, by_slot, fed, positions, offsets, requests, on_host, mapping, steps, lengths, fed
            )
            judged = Drafts.from_lists(given.tolist(), draft_probs=probs, device=device)
            output = self._native.verify(logits, judged, batch.metadata(_PLAIN, first_rows=True), mode=mode)
            needed, found = (output.num_accepted + 1).tolist(), counts.tolist()
            if needed != found:
                raise PluginError(f"needs {needed} tokens in the mode {mode!r}, found {found}")
            is_emitted = torch.arange(most + 1, device=device) < counts[:, None]
            require(tokens[is_emitted], output.token_ids[is_emitted], kept[is_emitted])

    def _draft(self) -> None:
        from vllm.v1.worker.gpu.spec_decode.speculator import gumbel_sample

        setup, logits = self.setup, self._logits(len(_PLAIN), 0)
        batch = _Batch(self.make, _PLAIN, 0, setup.device)
        step, states = setup.drafts.most - 1, batch.sampler.sampling_states
        cache = logits.new_zeros(len(_PLAIN), step + 1, setup.vocab_size)
        mapping, slots, _, positions, *_ = batch.layout
        column = torch.tensor(step, dtype=torch.int64, device=setup.device)
        given = logits, mapping, states.temperature.gpu, states.seeds.gpu, positions
        tokens = gumbel_sample(*given, True, True, cache, column, use_fp64=setup.need.gumbel_dtype == "fp64")
        if not torch.equal(cache[slots.long(), step], logits):
            raise PluginError("the logits of drafts are not kept by slot and step")
        asked = [{"temperature": each.get("temperature", 1.0)} for each in _PLAIN]
        require(tokens, self._native.draft(logits, batch.metadata(asked, shift=step << 32)).token_ids, logits)

    def _score(self) -> None:
        from vllm.v1.worker.gpu.sample import sampler

        logits, scored = self._logits(len(_PLAIN), 0), getattr(sampler, logprobs.FUNCTION)
        arguments = logits, 4, logits.topk(3).indices[:, 2].contiguous()
        named = {"logits_mode": self.setup.logprobs_mode.endswith("logits")}
        mine, own = scored(*arguments, **named), scored.__wrapped__(*arguments, **named)
        for name in ("logprob_token_ids", "selected_token_ranks", "logprobs"):
            if not torch.allclose(getattr(mine, name).double(), getattr(own, name).double(), atol=1e-3):
                raise PluginError(f"{name} differ from those of vLLM's own")

    def _logits(self, rows: int, step: int) -> Tensor:
        return made_up_logits(rows, self.setup.vocab_size, self.setup.dtype, self.setup.device, step)

    @property
    def _native(self) -> Sampler:
        return reference(self.setup.device, self.setup.need)


class _Batch:
    """Requests in new states of vLLM's, with a row each, or K + 1."""

    def __init__(
        self, make: Callable[[int], tuple[Any, Any]], asked: _Asked, most: int, device: torch.device
    ) -> None:
        from vllm.sampling_params import SamplingParams as VllmParams

        def on_device(values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._most, self._device = most, device
        self.sampler, states = make(len(asked))
        slots, lengths = [], len(_PROMPT) * np.arange(1, len(asked) + 1, dtype=np.int32)
        for i, parameters in enumerate(asked):
            states.add_request(str(i), int(lengths[i]), _PROMPT * (i + 1), 0, most + 1)
            slots.append(states.req_id_to_index[str(i)])
            self.sampler.add_request(slots[i], VllmParams(seed=i + 1, **parameters))
        states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        steps = np.tile(np.arange(most + 1), len(asked))
        self._positions = np.repeat(lengths - 1, most + 1) + steps
        self.fed = torch.full((len(asked), most + 1), _PROMPT[-1], dtype=torch.int32, device=device)
        rows, positions = on_device(np.repeat(slots, most + 1)), on_device(self._positions, torch.int64)
        self.layout: tuple[Any, ...] = rows, on_device(slots), np.array(slots), positions
        self.layout += self.fed.view(-1), on_device(steps), lengths + most
        """Arguments of vLLM's methods behind the logits."""

    def metadata(self, asked: _Asked, *, first_rows: bool = False, shift: int = 0) -> SamplingMetadata:
        """Describe rows to native, with parameters for each; ``first_rows``: one of each request."""
        each = 1 if first_rows else self._most + 1
        params = [SamplingParams(seed=i // each + 1, **parameters) for i, parameters in enumerate(asked)]
        positions = self._positions[:: self._most + 1] if first_rows else self._positions
        return SamplingMetadata.from_params(
            params, positions=(positions + shift).tolist(), device=self._device
        )


def reference(device: torch.device, need: Need) -> Sampler:
    return tokendraw.load_sampler(REFERENCE, device=device, need=Need(gumbel_dtype=need.gumbel_dtype))


def made_up_logits(
    rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device, step: int = 0
) -> Tensor:
    """Make up logits [rows, V]: falling by 1/4 over a few ids, and far below them elsewhere."""
    generator = torch.Generator().manual_seed(step)
    logits = torch.full((rows, vocab_size), -12.0, dtype=torch.float32, device="cpu")
    head = 8.0 - torch.arange(min(_HEAD, vocab_size), dtype=torch.float32, device="cpu") / 4
    for row in logits:
        ids = torch.randperm(vocab_size, generator=generator, dtype=torch.int64, device="cpu")
        row[ids[: len(head)]] = head
    return logits.to(device, dtype)


def require(tokens: Tensor, expected: Tensor, kept: Tensor) -> None:
    """Raise where tokens [rows] differ from native's, or where vLLM's logits [rows, V] drop one with -inf."""
    drawn, native = tokens.tolist(), expected.tolist()
    if drawn != native:
        raise PluginError(f"needs the tokens {native} that '{REFERENCE}' draws, found {drawn}")
    if (kept.gather(1, tokens[:, None].long()) == -float("inf")).any():
        raise PluginError(f"vLLM's own filters drop tokens of {drawn}")
