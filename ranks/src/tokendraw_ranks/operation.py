"""The operation ``sample_over_ranks``: its call, which the ranks check together, its sampler, and the proof."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

import tokendraw
from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw.plugin import (
    Call,
    Capabilities,
    OutputCheck,
    Provider,
    check_batch,
    check_logits,
    dispatch,
    untraced,
)
from tokendraw_ranks import OPERATION
from tokendraw_ranks.columns import Columns
from tokendraw_ranks.sampling import draw_tokens
from tokendraw_ranks.shard import Agreement, Layout, VocabShard, agree, reader_of


class RanksSampler:
    """Draws from the columns of a rank, together with the other ranks."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._need, self._columns = need, Columns
        if reader_of(device.type) == "triton-gumbel":
            from tokendraw_ranks.triton_columns import TritonColumns

            self._columns = TritonColumns

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata, agreement: Agreement) -> SamplerOutput:
        if not len(logits):
            return _empty(metadata, agreement.layout.vocab_size, self._need, logits.device)
        if logits.is_cuda and logits.get_device() != torch.cuda.current_device():
            with torch.cuda.device(logits.device):
                return self.sample(logits, metadata, agreement)
        columns = self._columns(logits, metadata, agreement.layout, self._need)
        return draw_tokens(columns, metadata, agreement, self._need)


def _empty(metadata: SamplingMetadata, vocab_size: int, need: Need, device: torch.device) -> SamplerOutput:
    """Return the output of no rows: no rank has anything to say."""
    tokens, real = torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, device=device)
    width, logprobs = metadata.facts.logprobs_width(vocab_size), None
    if width is not None:
        best = tokens.new_empty(0, 1 + width), real.new_empty(0, 1 + width)
        logprobs = LogprobsTensors(*best, tokens if need.logprob_ranks else None)
    mass, threshold = None if width is None else real, real if need.threshold else None
    return SamplerOutput(tokens, tokens.to(torch.bool), logprobs, mass, threshold)


class SampleOverRanks(Call):
    """The columns [B, n] of a rank, and the parameters of the rows, equal on every rank."""

    __slots__ = ("logits", "metadata", "shard")

    hint_field: ClassVar[str] = "SamplingMetadata.facts"
    may_fall_back: ClassVar[bool] = False  # the ranks would part

    def __init__(self, logits: Tensor, metadata: SamplingMetadata, shard: VocabShard) -> None:
        self.logits, self.metadata, self.shard = logits, metadata, shard

    def check(self, device: torch.device, need: Need) -> None:
        """Check the call of this rank, and at the first call of a shard those of all, before any of them runs."""
        error = None
        try:
            self._check_own(device, need)
        except tokendraw.TokendrawError as refusal:
            error = refusal
        if error is not None and not isinstance(self.shard, VocabShard):
            raise error
        agree(self.shard, self.logits, self.metadata, need, error)

    def _check_own(self, device: torch.device, need: Need) -> None:
        if not isinstance(self.shard, VocabShard):
            raise tokendraw.InvalidInputError(
                f"'shard' needs a tokendraw_ranks.VocabShard, found {type(self.shard).__name__}. "
                "Pass VocabShard(start, vocab_size)."
            )
        check_logits("logits", self.logits, device, least_columns=0)
        check_batch("logits", self.logits, self.metadata, need, self.shard.vocab_size)
        facts = self.metadata.facts
        for name, is_asked, instead in (
            ("'logprob_token_ids'", facts.any_logprob_token_ids, "ask for the best tokens with logprobs="),
            ("'typical_p'", facts.any_typical_p, "use min_p, top_k and top_p"),
            ("'xtc_probability'", facts.any_xtc, "use min_p, top_k and top_p"),
            ("'filter_order' temperature_last", facts.any_temperature_last, "use top_k_first or joint"),
        ):
            if is_asked:
                raise tokendraw.InvalidInputError(
                    f"{name} needs all columns of the logits on one device, found a shard of the vocabulary. "
                    f"Gather the logits, or {instead}."
                )

    def cached_check(self, key: object) -> OutputCheck | None:
        kinds = type(self.metadata), type(self.shard), type(self.logits)
        if kinds != (SamplingMetadata, VocabShard, Tensor):
            return None
        checked: Any = self.metadata.memo.get((key, self.shard.agreed.key))
        return _wrong_output if checked == self._form() else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        self.metadata.memo[key, self.shard.agreed.key] = self._form()

    def _form(self) -> tuple[object, ...]:
        return self.logits.shape, self.logits.dtype, self.logits.device

    def check_values(self) -> None:
        self.metadata.check_values()

    def tensors(self) -> dict[str, Tensor]:
        return {"logits": self.logits}

    def with_tensors(self, tensors: Mapping[str, Any]) -> Self:
        return type(self)(tensors["logits"], self.metadata, self.shard)

    def run(self, backend: RanksSampler) -> SamplerOutput:
        agreement = self.shard.agreed.by_all
        assert agreement is not None  # :meth:`check` raises without one
        return backend.sample(self.logits, self.metadata, agreement)

    def output_check(self, need: Need) -> OutputCheck:
        return _wrong_output

    @property
    def num_rows(self) -> int:
        return len(self.logits)


def _wrong_output(output: object) -> None: ...  # it is our own


class RanksProvider(Provider):
    """Draws a token for each row of logits whose columns lie on several ranks."""

    _operations: ClassVar[tuple[Any, ...]] = (OPERATION,)

    @untraced
    def sample(self, logits: Tensor, metadata: SamplingMetadata, shard: VocabShard) -> SamplerOutput:
        """Draw a token for each row, together with the other ranks of a group: the output of one device, on every rank.

        Rows without a seed take theirs from rank 0. Waits for no device but a CPU, and with NCCL can be captured in a
        CUDA graph once its shard has agreed. The logits are never modified.

        :param logits: [B, n] float32, bfloat16 or float16, any row stride, n columns without padding, perhaps 0.
        :param metadata: the parameters of the B rows, the same on every rank, on the device of the logits.
        :param shard: which ids the columns are. At its first call the ranks compare what they hold and were given.
        :raises InvalidInputError: a ValueError, on every rank alike: the ranks hold a gap, an overlap or another
            vocabulary, or were given other batches; or the call is wrong, or needs all columns on one device.
        """
        output: SamplerOutput = dispatch(
            self._negotiator, OPERATION, SampleOverRanks(logits, metadata, shard)
        )
        return output


def prove(backend: RanksSampler, capabilities: Capabilities, device: torch.device, need: Need) -> None:
    """Draw by a group of one rank from two rows, with all mass on a middle token of each.

    :raises PluginError: the tokens are others.
    """
    logits = torch.zeros(2, 2500, dtype=getattr(torch, need.dtype or "float32"), device=device)
    logits[0, 1], logits[1, 2049] = 100.0, 100.0
    metadata = SamplingMetadata.from_params(
        [SamplingParams(top_k=2, top_p=0.9, seed=0)] * 2, positions=[0, 1], device=device
    )
    alone: Any = SimpleNamespace(rank=0, size=1, all_gather=lambda tensor: tensor.unsqueeze(0))
    agreement = Agreement(alone, Layout.of([(0, 2500)], 0, 2500, device))
    tokens = backend.sample(logits, metadata, agreement).token_ids.tolist()
    if tokens != [1, 2049]:
        raise tokendraw.PluginError(f"the proof draw needs tokens [1, 2049], found {tokens}")


CALLS = {"sample": SampleOverRanks}
PROVIDER = RanksProvider
