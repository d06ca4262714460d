"""The native sampler with places to go wrong in, each for the rows and the calls of one corner alone."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields, replace
from typing import ClassVar
from unittest import mock

import torch
from torch import Tensor

import tokendraw
from corner_bugs.call import Call, request_of_rows
from tokendraw import (
    Drafts,
    LogprobsTensors,
    SamplerOutput,
    SamplingMetadata,
    VerifyOutput,
    VocabShard,
    philox,
)
from tokendraw_native import plugin
from tokendraw_native.noise import Noise
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import Subject

NATIVE = {name: plugin.tokendraw_describe().operations[name] for name in ("sample", "verify")}


@functools.cache
def native(device: str, need: tokendraw.Need) -> NativeSampler:
    return NativeSampler(torch.device(device), need)


class Honest:
    """The native sampler."""

    dtype: ClassVar[str | None] = None
    """The only dtype of logits in which it goes wrong."""
    above: ClassVar[int] = 0
    """It goes wrong in vocabularies larger than this."""
    unseeded: ClassVar[bool | None] = None
    """Whether it goes wrong in rows without a seed alone, or with one alone."""
    line: ClassVar[str] = ""
    """The property of the kit that it breaks; "" where no line sees it, for the reason below."""
    unseen: ClassVar[str] = ""
    crossed_sizes: ClassVar[tuple[int, ...]] = ()
    """Vocabularies that show it, where it takes others than its width says."""
    all_cases: ClassVar[bool] = False
    """Whether a part of the cases of wide vocabularies does not show it."""
    all_dtypes: ClassVar[bool] = False
    """Whether it shows only where rows of several dtypes meet."""

    def __init__(self, need: tokendraw.Need | None = None, device: str = "cpu") -> None:
        self.need, self.device = need or tokendraw.Need(), str(device)

    def in_corner(self, logits: Tensor) -> bool:
        """Whether a call may go wrong, by what is known before."""
        return (
            len(logits) > 0
            and logits.shape[1] > self.above
            and self.dtype in (None, str(logits.dtype).removeprefix("torch."))
        )

    def patches(self) -> list[AbstractContextManager[object]]:
        """What is exchanged inside the native sampler while it goes wrong."""
        return []


class Draws(Honest):
    """A sampler that goes wrong in ``sample``."""

    drafts: ClassVar[bool] = False
    """Whether drafts go wrong, in place of tokens."""

    def sample(
        self,
        logits: Tensor,
        metadata: SamplingMetadata,
        *,
        draft: bool = False,
        shard: VocabShard | None = None,
    ) -> SamplerOutput:
        sampler = native(self.device, self.need)
        if not self.in_corner(logits) or draft != self.drafts or shard is not None:
            return sampler.sample(logits, metadata, draft=draft, shard=shard)
        call = Call.of(logits, metadata, self.need.logprobs_mode, draft=draft)
        at = self.where(call) & torch.ones_like(call.unseeded)
        if self.unseeded is not None:
            at = at & (call.unseeded == self.unseeded)
        if not at.any():
            return sampler.sample(logits, call.metadata, draft=draft)
        with ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            changed = self.change(call)
            wrong = sampler.sample(changed.logits, changed.metadata, draft=draft)
        shown = self.shown(call, wrong)
        if at.all():
            return shown
        return merged(at, shown, sampler.sample(logits, call.metadata, draft=draft))

    def verify(
        self, target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, *, mode: str = "rejection"
    ) -> VerifyOutput:
        return native(self.device, self.need).verify(target_logits, drafts, metadata, mode=mode)

    def where(self, call: Call) -> Tensor | bool:
        """Which rows go wrong: [rows] bool."""
        return True

    def change(self, call: Call) -> Call:
        """The call that is made in place of the right one."""
        return call

    def shown(self, call: Call, output: SamplerOutput) -> SamplerOutput:
        """What becomes of the output."""
        return output


class NoBug(Draws):
    """The native sampler, without a mistake."""

    def in_corner(self, logits: Tensor) -> bool:
        return False


class Filters(Draws):
    """A sampler that keeps other tokens than it should, in calls whose logprobs do not show the logits as given."""

    def where(self, call: Call) -> Tensor | bool:
        shows = call.metadata.facts.max_logprobs is not None and not call.mode.startswith("processed")
        return ~call.greedy & (not shows) & self.filtered(call)

    def filtered(self, call: Call) -> Tensor | bool:
        """Which rows go wrong."""
        return True


class Verifies(Honest):
    """A sampler that goes wrong in ``verify``."""

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        return native(self.device, self.need).sample(logits, metadata, draft=draft)

    def verify(
        self, target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, *, mode: str = "rejection"
    ) -> VerifyOutput:
        sampler = native(self.device, self.need)
        if not self.in_corner(target_logits) or not drafts.num_requests:
            return sampler.verify(target_logits, drafts, metadata, mode=mode)
        call = Call.of(target_logits, metadata, self.need.logprobs_mode)
        first = drafts.cu_num_logits[:-1].long()
        at = self.which(call, drafts, mode) & torch.ones_like(first, dtype=torch.bool)
        if self.unseeded is not None:
            at = at & (call.unseeded[first] == self.unseeded)
        if not at.any():
            return sampler.verify(target_logits, drafts, call.metadata, mode=mode)
        with ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            changed, own = self.change(call, drafts)
            wrong = sampler.verify(changed.logits, own, changed.metadata, mode=mode)
        shown = self.shown(call, drafts, wrong)
        if at.all():
            return shown
        return merged(at, shown, sampler.verify(target_logits, drafts, call.metadata, mode=mode))

    def which(self, call: Call, drafts: Drafts, mode: str) -> Tensor | bool:
        """Which requests go wrong: [B] bool."""
        return True

    def change(self, call: Call, drafts: Drafts) -> tuple[Call, Drafts]:
        """The call that is made in place of the right one."""
        return call, drafts

    def shown(self, call: Call, drafts: Drafts, output: VerifyOutput) -> VerifyOutput:
        """What becomes of the output."""
        return output

    @staticmethod
    def counts(drafts: Drafts) -> Tensor:
        """The number of drafts of each request."""
        return drafts.cu_num_logits.long().diff() - 1

    @staticmethod
    def rows(call: Call, drafts: Drafts) -> tuple[Tensor, Tensor]:
        """The request of each row, and its place there."""
        return request_of_rows(drafts.cu_num_logits, len(call.logits))


def merged(at: Tensor, wrong, right):
    """Take rows ``at`` of the one, and all others of the other."""

    def column(name: str):
        one, other = getattr(wrong, name), getattr(right, name)
        if isinstance(one, LogprobsTensors):
            return merged(at, one, other)
        if one is None:
            return None
        return torch.where(at.reshape(-1, *[1] * (one.dim() - 1)), one, other)

    return replace(right, **{field.name: column(field.name) for field in fields(right)})


def noise(
    bits: int = 32, index=lambda index: index, position=lambda p: p, seed=lambda s: s, stream=lambda s: s
):
    """Exchange the noise of draws: with fewer bits, or of another index, position, seed or stream."""

    def gumbel(self, at, own, dtype):
        words = philox.random_words(seed(self.seed), position(self.position), index(at), stream(own))[0]
        step = 1 << (32 - bits)
        u = (words // step * step + step / 2).double() / 2.0**32
        return -torch.log(-torch.log1p(-u)).to(torch.float64 if dtype == "fp64" else torch.float32)

    return mock.patch.object(Noise, "gumbel", gumbel)


def subject(bug: type[Honest], device: str = "cpu", seed: int = 0, quick: bool = True) -> Subject:
    """The plugin with the bug, as the kit takes it."""
    return Subject(
        bug.__name__,
        capabilities=NATIVE,
        device=device,
        build=lambda operation, need: bug(need, device),
        quick=quick,
        seed=seed,
    )


def bugs_of(namespace: dict[str, object]) -> tuple[type[Honest], ...]:
    """The bugs that a module defines, in its order."""
    return tuple(
        found
        for found in namespace.values()
        if isinstance(found, type) and issubclass(found, Honest) and found.__module__ == namespace["__name__"]
    )
