"""Mutants of a corner: native with a bug in some dtypes, widths, rows or requests alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest import mock

import torch

import tokendraw
import tokendraw_native.verify as pieces
from mutants import Mutant
from mutants.corner_calls import CornerCall
from tokendraw import LogprobsTensors, philox
from tokendraw_native import plugin
from tokendraw_native.rows import Noise
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import Effort

NATIVE = {name: plugin.tokendraw_describe().operations[name] for name in ("sample", "verify")}
WIDE, WIDER = 1 << 16, 1 << 17
LARGE_BATCH_ROWS, TABLE_CASES = 90, 24
"""Rows of the large batches and cases of a covering table, where a look takes one wide vocabulary."""
_QUICK = Effort.of(quick=True, device_type="cpu")

Hook = Callable[[CornerCall], Any]


@dataclass(frozen=True, kw_only=True)
class Corner(Mutant):
    """A mutant of a corner.

    :ivar where: the rows, or the requests of a verification, that go wrong: bool or a bool tensor.
    :ivar change: the call that is made in their place.
    :ivar output: what becomes of its output.
    :ivar patch: the context in which it is made.
    :ivar metadata: changes the caller's metadata before anything else, in calls that draw no drafts.
    :ivar dtype: the only dtype of logits that goes wrong.
    :ivar above: vocabularies larger than this go wrong.
    :ivar unseeded: whether rows without a seed go wrong alone, or rows with one.
    :ivar noise: the only dtype of noise that goes wrong.
    :ivar drafts: whether the draws of drafts go wrong, and not those of tokens.
    :ivar sizes: the vocabularies that show it, where ``above`` does not say so.
    :ivar all_cases: whether it takes all cases of a wide vocabulary to show it.
    :ivar all_dtypes: whether it takes rows of several dtypes to show it.
    """

    build: Callable[..., Any] = None
    capabilities: dict[str, Any] = None
    where: Hook | None = None
    change: Hook | None = None
    output: Callable[[CornerCall, Any], Any] | None = None
    patch: Hook | None = None
    metadata: Callable[[Any], Any] | None = None
    dtype: str | None = None
    above: int = 0
    unseeded: bool | None = None
    noise: str | None = None
    drafts: bool = False
    sizes: tuple[int, ...] = ()
    all_cases: bool = False
    all_dtypes: bool = False

    def __post_init__(self) -> None:
        """Advertise the dtype of the corner alone."""
        dtypes = NATIVE["sample"].dtypes if self.all_dtypes else (self.dtype or "float32",)
        offered = {name: replace(native, dtypes=dtypes) for name, native in NATIVE.items()}
        object.__setattr__(self, "capabilities", self.capabilities or offered)
        object.__setattr__(self, "build", functools.partial(CornerSampler, self))

    def subject(self, **options: Any) -> Any:
        """Return the plugin, in an effort of a few vocabularies."""
        effort = replace(_QUICK, crossed_sizes=self.widths)
        crossed = bool(self.lines) and self.lines[0].startswith(("crossed", "verify crossing"))
        if max(self.widths) > WIDE and not self.all_cases and crossed:
            effort = replace(effort, crossed_batch=LARGE_BATCH_ROWS, crossed_rows=TABLE_CASES)
        return super().subject(**{"effort": effort} | options)

    @property
    def widths(self) -> tuple[int, ...]:
        """The vocabularies of crossed requests for seeing the bug."""
        if self.sizes:
            return self.sizes
        if self.above < 1 << 13:
            return (33, 1025)
        if self.above < WIDE - 1:
            return (20_011,)
        return (131_113,) if self.operation == "sample" else (33, 131_113)

    def honest(self) -> Corner:
        """Return native as the mutant advertises it."""
        return replace(self, name=f"native for {self.name}", sizes=self.widths, above=1 << 62, metadata=None)

    def meets(self, logits: torch.Tensor, need: tokendraw.Need) -> bool:
        """Whether a call can lie in the corner."""
        return (
            len(logits) > 0
            and logits.shape[1] > self.above
            and self.dtype in (None, str(logits.dtype).removeprefix("torch."))
            and self.noise in (None, need.gumbel_dtype)
            and (self.where or self.change or self.output or self.patch) is not None
        )


@functools.cache
def _native(device: str, need: tokendraw.Need) -> NativeSampler:
    return NativeSampler(torch.device(device), need)


class CornerSampler:
    """The sampler and verifier with the bug of a corner."""

    def __init__(self, corner: Corner, need: tokendraw.Need | None = None, device: str = "cpu") -> None:
        self.corner, self.need = corner, need or tokendraw.Need()
        self.native = _native(str(device), self.need)
        self.memory = {"native": self.native}

    def sample(self, logits, metadata, *, draft=False):
        corner = self.corner
        if corner.metadata and not draft:
            metadata = corner.metadata(metadata)
        if corner.operation != ("verify" if corner.drafts else "sample") or draft != corner.drafts:
            return self.native.sample(logits, metadata, draft=draft)
        if not corner.meets(logits, self.need):
            return self.native.sample(logits, metadata, draft=draft)
        call = CornerCall.of(logits, metadata, mode=self.need.logprobs_mode, draft=draft, memory=self.memory)

        def run(call):
            return self.native.sample(call.logits, call.metadata, draft=draft)

        return self._merged(call, call.unseeded, run)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        corner = self.corner
        of_verify = corner.operation == "verify" and not corner.drafts
        if not (of_verify and corner.meets(target_logits, self.need) and drafts.num_requests):
            return self.native.verify(target_logits, drafts, metadata, mode=mode)
        call = CornerCall.of(
            target_logits,
            metadata,
            mode=self.need.logprobs_mode,
            drafts=drafts,
            verify_mode=mode,
            memory=self.memory,
        )

        def run(call):
            return self.native.verify(call.logits, call.drafts, call.metadata, mode=mode)

        return self._merged(call, call.unseeded[call.first_rows], run)

    def _merged(self, call, unseeded, run):
        """Make the right and the wrong call, and merge the outputs by row."""
        corner = self.corner
        wrong_rows = (
            torch.ones_like(unseeded)
            if corner.where is None
            else corner.where(call) & torch.ones_like(unseeded)
        )
        if corner.unseeded is not None:
            wrong_rows = wrong_rows & (unseeded == corner.unseeded)
        if not wrong_rows.any():
            return run(call)
        with corner.patch(call) if corner.patch else nullcontext():
            wrong = run(corner.change(call) if corner.change else call)
        if corner.output:
            wrong = corner.output(call, wrong)
        return wrong if wrong_rows.all() else merged(wrong_rows, wrong, run(call))


def merged(rows, wrong, right):
    """Take ``rows`` of the wrong output, and the rest of the right output."""

    def column(name):
        ours, theirs = getattr(wrong, name), getattr(right, name)
        if isinstance(ours, LogprobsTensors):
            return merged(rows, ours, theirs)
        if ours is None or len(ours) != len(
            rows
        ):  # a bound of each row of a target, which no bug of a request changes
            return theirs
        return torch.where(rows.view(-1, *[1] * (ours.dim() - 1)), ours, theirs)

    return replace(right, **{field.name: column(field.name) for field in fields(right)})


# Patches of native's noise and of the pieces of its verification.


def noise(bits=32, position=lambda p: p, seed=lambda s: s, stream=lambda s: s):
    """Patch the noise of draws: fewer bits, or another position, seed or stream."""

    def gumbel(self, index, number, dtype):
        words = philox.random_words(seed(self.seed), position(self.position), index, stream(number))[0]
        step = 1 << (32 - bits)
        u = (words // step * step + step / 2).double() / 2.0**32
        return -torch.log(-torch.log1p(-u)).to(torch.float64 if dtype == "fp64" else torch.float32)

    return lambda call: mock.patch.object(Noise, "gumbel", gumbel)


def gumbel(change):
    """Patch the noise of draws: ``change(noise, index, stream)`` returns another noise and index."""
    native = Noise.gumbel

    def changed(self, index, stream, dtype):
        self, index = change(self, index, stream)
        return native(self, index, stream, dtype)

    return lambda call: mock.patch.object(Noise, "gumbel", changed)


def uniform(change):
    """Patch the noise of acceptances: ``change(call, noise, u, stream, dtype)`` returns other variates."""
    native = Noise.uniform

    def patch(call):
        def changed(self, stream, dtype, index=None):
            return change(call, self, native(self, stream, dtype, index), stream, dtype)

        return mock.patch.object(Noise, "uniform", changed)

    return patch


def exchange(**names):
    """Patch functions of the native verification."""
    return lambda call: mock.patch.dict(vars(pieces), names)


class Distribution:
    """A distribution with changed probabilities: ``change(probabilities, rows)``."""

    def __init__(self, native, change):
        self.native, self.change, self.valid = native, change, native.valid

    def probs_at(self, rows, ids):
        return self.change(self.native.probs_at(rows, ids), rows)

    def probs(self, rows):
        return self.change(self.native.probs(rows), rows)


def draft_distribution(change):
    """Patch the distribution of drafts."""
    native = pieces._draft_distribution

    def changed(*args):
        distribution, row = native(*args)
        return change(distribution), row

    return exchange(_draft_distribution=changed)


# Changes of outputs.


def logprobs(change):
    """Replace fields of the logprobs of an output: ``change(call, logprobs)``."""

    def output(call, output):
        if output.logprobs is None:
            return output
        return replace(output, logprobs=replace(output.logprobs, **change(call, output.logprobs)))

    return output


def ranks(change):
    """Replace the ranks of an output: ``change(call, ranks, token_ids)``."""

    def output(call, output):
        best = output.logprobs
        if best is None or best.ranks is None:
            return output
        return replace(output, logprobs=replace(best, ranks=change(call, best.ranks, output.token_ids)))

    return output


def _column(name):
    """Replace a float column of an output: ``change(call, values)``."""

    def made(change):
        def output(call, output):
            values = getattr(output, name)
            return output if values is None else replace(output, **{name: change(call, values).float()})

        return output

    return made


kept_mass, threshold = _column("log_kept_mass"), _column("threshold")


def given(change):
    """Replace the given ids and their logprobs: ``change(call, ids, values)``."""

    def fields(call, best):
        ids, values = best.given_token_ids, best.given_logprobs
        if ids is None:
            return {}
        ids, values = change(call, ids, values)
        return {"given_token_ids": ids, "given_logprobs": values}

    return logprobs(fields)


def tokens(change):
    """Replace the drawn tokens: ``change(call, token_ids)``."""
    return lambda call, output: replace(output, token_ids=change(call, output.token_ids))


def best_repeated(most):
    """Repeat the last of the ``most`` best tokens in all later places."""

    def change(call, best):
        place = torch.arange(best.token_ids.shape[-1]).clamp(max=most)
        return {"token_ids": best.token_ids[..., place], "logprobs": best.logprobs[..., place]}

    return logprobs(change)


# Rows of the tables.


def draw(name: str, line: str, **hooks: Any) -> Corner:
    """A bug in the draw of tokens."""
    return Corner(name=name, operation="sample", lines=(line,) if line else (), **hooks)


def keep(name: str, line: str, where: Hook | None = None, **hooks: Any) -> Corner:
    """A bug in the kept set of random rows, in calls without logprobs of unprocessed logits."""

    def rows(call):
        shows_logits = call.shows_logprobs and not call.mode.startswith("processed")
        return ~call.greedy & (not shows_logits) & (where(call) if where else True)

    return draw(name, line, where=rows, **hooks)


def draft(name: str, line: str, **hooks: Any) -> Corner:
    """A bug in the draw of drafts."""
    return Corner(name=name, operation="verify", lines=(line,), drafts=True, **hooks)


def verify(
    name: str, line: str, where: Hook | None = None, by_row: Hook | None = None, **hooks: Any
) -> Corner:
    """A bug in a verification, in the requests ``where`` or with a first row in ``by_row``."""
    if by_row:

        def where(call):
            return by_row(call)[call.first_rows]

    return Corner(name=name, operation="verify", lines=(line,), where=where, **hooks)
