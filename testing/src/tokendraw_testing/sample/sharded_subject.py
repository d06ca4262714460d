"""A subject with calls on several ranks, each a thread with a part of the logits."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tokendraw import SamplerOutput, VocabShard
from tokendraw.plugin import Call
from tokendraw.tools import run_call
from tokendraw_testing.kit.inputs import bits, require_unmodified
from tokendraw_testing.kit.trial import Trial, Violation
from tokendraw_testing.rows.expectation import LEAST_EQUAL_SHARE
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.outputs import tensors_of
from tokendraw_testing.shards.splits import VocabSplit, splits
from tokendraw_testing.shards.thread_ranks import ThreadRank, on_ranks


@dataclass
class _Tally:
    """Counts of calls over ranks."""

    split: VocabSplit | None = None
    """The split of the last call."""
    rows: int = 0
    """Rows of all calls."""
    apart: int = 0
    """Rows with another token than on one device."""


class ShardedSubject(SampleSubject):
    """A subject with calls on several ranks, each with a part of the logits, and the same call on one device.

    The splits of a vocabulary take turns. Every rank has to return the same, bit by bit, and leave its logits as they
    are; the tokens are those of the one device, up to near ties.
    """

    def __init__(self, view: SampleSubject, trial: Trial) -> None:
        super().__init__(view.subject)
        self._trial = trial
        self._turns = Counter[int]()
        self.tally = _Tally()
        """Shared by the copies for calls of other needs."""

    def make(self, call: Call, need: Any = None) -> SamplerOutput:
        """Make a call on all ranks and return the output."""
        logits, metadata = call.logits, call.metadata  # type: ignore[attr-defined]
        need = replace(need or self.usual_need, vocab_parallel=True)
        size = logits.shape[1]
        choice = splits(size)
        split = self.tally.split = choice[self._turns[size] % len(choice)]
        self._turns[size] += 1
        parts = split.of(logits)

        def work(rank: ThreadRank) -> SamplerOutput:
            part = parts[rank.rank]
            shard = VocabShard(split.bounds[rank.rank], logits.shape[1], rank)
            rank_call = self.new_call("sample", part, metadata, shard=shard)
            backend = self.subject.built(self.operation, need, rank.rank)
            output, reason = run_call(rank_call, backend, plugin=self.subject.name, need=need)
            if reason is not None:
                raise Violation(f"rank {rank.rank} needs to return {reason}")
            result: SamplerOutput = output
            return result

        parts_by_name = {f"logits of rank {rank}": part for rank, part in enumerate(parts)}
        with require_unmodified(self._trial, metadata=metadata, **parts_by_name):
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=devices):
                reference: SamplerOutput = super().make(call, need)
            outputs = on_ranks(split.size, work)  # from the same noise
        self._require_alike(outputs)
        self.tally.rows += len(logits)
        self.tally.apart += int((outputs[0].token_ids != reference.token_ids).sum())
        return outputs[0]

    def _require_alike(self, outputs: list[SamplerOutput]) -> None:
        first, *rest = [tensors_of(output) for output in outputs]
        for rank, tensors in enumerate(rest, 1):
            for name, tensor in first.items():
                self._trial.require(
                    name in tensors and torch.equal(bits(tensor), bits(tensors[name])),
                    f"'{name}' of rank {rank} needs to be that of rank 0, bit by bit, found another",
                )

    @property
    def words(self) -> str:
        """Count the rows drawn over ranks, and the rows with a different token on one device."""
        rows, apart = self.tally.rows, self.tally.apart
        return f"{rows} rows over 2 to 5 ranks, {apart} of them with another token than on one device"


@contextlib.contextmanager
def over_ranks(subject: SampleSubject, trial: Trial) -> Iterator[ShardedSubject]:
    """Run checks of calls over ranks, and compare all tokens with the draws on one device."""
    view = ShardedSubject(subject, trial)
    try:
        yield view
    except Violation as violation:
        raise Violation(f"over {view.tally.split}: {violation}") from violation.__cause__
    rows, num_same = view.tally.rows, view.tally.rows - view.tally.apart
    trial.require(
        num_same >= LEAST_EQUAL_SHARE * rows - 1,
        f"{rows} rows need {LEAST_EQUAL_SHARE:.2%} of one device's tokens, found {num_same}",
    )
