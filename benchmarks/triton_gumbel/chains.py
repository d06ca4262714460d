"""Compares verifications of drafts with the reference's, request by request, for noise in float32 and in float64.

Batches go through vocabularies from 100 to 151,936, filters, families of logits and dtypes in turn; each request has a
seed and a position of its own and up to four drafts, some of them placeholders. Every batch is verified with the logits
of its drafts, with their probabilities, with neither, and in the mode coupled; for float64 a quarter as many are.

Where the drafts' logits are the target's, none may be rejected; and on a CUDA device, replays of graphs whose inputs
were changed in place have to give what eager calls give.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import replays
import torch
from drafting import (
    FILTERS,
    MODES,
    DraftCell,
    Speculation,
    alike,
    differ,
    draft_counts,
    plan,
    speculation,
    with_placeholders,
)
from setting import Findings, Setting, markdown
from torch import Tensor

from tokendraw import Sampler, VerifyOutput
from tokendraw.plugin import GUMBEL_DTYPES, GumbelDtype

_LEAST = 0.9999
_MOST_LISTED = 20
_ALIKE = 5 * len(FILTERS)
"""Batches with p = q: each vocabulary with each filter."""
_DRAWN = "as draft() draws them"


@dataclass
class _VerifyCount:
    """Counts for verifications of a kind, or for draws of drafts."""

    requests: int = 0
    emitted: int = 0
    accepted: int = 0
    differ: int = 0

    @property
    def share(self) -> float:
        """Return the share of equal requests."""
        return 1 - self.differ / self.requests

    def row(self) -> list[str]:
        """Return the cells of a line of the table."""
        texts = [f"{number:,}" if number else "" for number in (self.emitted, self.accepted)]
        return [f"{self.requests:,}", *texts, str(self.differ), f"{100 * self.share:.4f} %"]


@dataclass
class _Comparison:
    """Counts of compared and of different requests for a dtype of the noise."""

    gumbel: GumbelDtype
    subject: Sampler
    other: Sampler
    drafts: _VerifyCount = field(default_factory=_VerifyCount)
    kinds: dict[str, _VerifyCount] = field(default_factory=lambda: {kind: _VerifyCount() for kind in MODES})
    listed: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> _VerifyCount:
        """Sum the counts of all kinds."""
        counts = self.kinds.values()
        return _VerifyCount(
            *(sum(getattr(count, name) for count in counts) for name in _VerifyCount.__dataclass_fields__)
        )

    @property
    def holds(self) -> bool:
        """Whether enough requests and drafts agree."""
        return min(self.total.share, self.drafts.share) >= _LEAST

    def compare(self, given: Speculation, generator: torch.Generator) -> None:
        """Draw the drafts of a batch, and verify them in every way."""
        for kind, count in self.kinds.items():
            ids = given.proposed(self.subject, kind)
            if kind == "logits":
                self.drafts.requests += len(ids)
                self.drafts.differ += int((ids != given.proposed(self.other, kind)).sum())
            ids = with_placeholders(ids, generator)
            ours, theirs = (_verified(sampler, given, ids, kind) for sampler in (self.subject, self.other))
            wrong = differ(ours, theirs)
            accepted = int(ours.num_accepted.sum())
            count.requests += len(wrong)
            count.accepted += accepted
            count.emitted += accepted + len(wrong)
            count.differ += int(wrong.sum())
            for request in wrong.nonzero().flatten()[: _MOST_LISTED - len(self.listed)].tolist():
                chains = [_chain(output, request) for output in (ours, theirs)]
                self.listed.append([*_described(given.cell), self.gumbel, kind, *chains])

    def rows(self) -> list[list[str]]:
        """Return the lines of the table."""
        counts = {**self.kinds, "all of these": self.total, _DRAWN: self.drafts}
        return [[self.gumbel, kind, *count.row()] for kind, count in counts.items()]

    def said(self) -> str:
        """Summarize the comparison in a sentence."""
        total, drafts = self.total, self.drafts
        return (
            f"{self.gumbel}: {total.requests - total.differ:,} of {total.requests:,} requests agree "
            f"({100 * total.share:.4f} %, needed {100 * _LEAST:.2f} %), and {drafts.requests - drafts.differ:,} of "
            f"{drafts.requests:,} drafts ({100 * drafts.share:.4f} %); {self.seconds:.0f} s."
        )


def run(setting: Setting, *, requests: int, noise: tuple[GumbelDtype, ...] = ()) -> Findings:
    """Compare ``requests`` verifications, then look at p = q and at graphs.

    :param noise: its dtypes; none: all.
    """
    wanted = min(requests, 400) if setting.small else requests
    compared = [
        _compared(setting, gumbel, wanted if gumbel == "fp32" else -(-wanted // 4))
        for gumbel in noise or GUMBEL_DTYPES
    ]
    rejected = [_rejected(setting, comparison) for comparison in compared]
    texts, replays_hold = _replays(setting, compared)
    titles = ["noise", "drafts", "requests", "tokens emitted", "drafts accepted", "differ", "agree"]
    rows = [row for comparison in compared for row in comparison.rows()]
    parts = [*(comparison.said() for comparison in compared), markdown(titles, rows, words=2)]
    listed = [line for comparison in compared for line in comparison.listed][:_MOST_LISTED]
    if listed:
        columns = ["V", "dtype", "logits", "filters", "noise", "drafts", setting.sampler, setting.reference]
        parts += [
            f"The first {len(listed)} that differ, and how many drafts each accepted.",
            markdown(columns, listed, words=len(columns)),
        ]
    names = ["noise", "requests", "drafts", "requests with a rejected draft"]
    parts += ["Drafts from the target's own logits, p = q to the bit:", markdown(names, rejected), texts]
    holds = all(comparison.holds for comparison in compared) and all(row[-1] == "0" for row in rejected)
    return Findings(text="\n\n".join(parts), holds=holds and replays_hold)


def _compared(setting: Setting, gumbel: GumbelDtype, least: int) -> _Comparison:
    """Compare at least ``least`` verifications."""
    subject, other = (setting.load(name, gumbel=gumbel) for name in (setting.sampler, setting.reference))
    found, start = _Comparison(gumbel, subject, other), time.perf_counter()
    generator = torch.Generator(setting.device).manual_seed(8)
    for given in _speculations(setting, generator):
        found.compare(given, generator)
        if found.total.requests >= least:
            break
    found.seconds = time.perf_counter() - start
    return found


def _speculations(setting: Setting, generator: torch.Generator) -> Iterator[Speculation]:
    rng = np.random.default_rng(8)
    for cell in plan(small=setting.small):
        yield speculation(cell, draft_counts(rng, cell.requests), rng, generator)


def _verified(sampler: Sampler, given: Speculation, ids: Tensor, kind: str) -> VerifyOutput:
    return sampler.verify(given.target, given.drafts(ids, kind), given.metadata, mode=MODES[kind])


def _rejected(setting: Setting, comparison: _Comparison) -> list[str]:
    """Count requests and drafts with p = q, and requests with a rejected draft."""
    requests = drafts = rejected = 0
    generator = torch.Generator(setting.device).manual_seed(9)
    for given in itertools.islice(_speculations(setting, generator), _ALIKE):
        same, sampler = alike(given), comparison.subject
        output = _verified(sampler, same, same.proposed(sampler, "logits"), "logits")
        counts = torch.tensor(given.counts, device=setting.device)
        requests, drafts = requests + len(counts), drafts + sum(given.counts)
        rejected += int((output.num_accepted != counts).sum())
    return [comparison.gumbel, f"{requests:,}", f"{drafts:,}", str(rejected)]


def _replays(setting: Setting, compared: list[_Comparison]) -> tuple[str, bool]:
    """Return the table of captured calls, and whether replays equal eager calls."""
    if setting.device.type != "cuda":
        return "Replays of CUDA graphs were not tried: there is no CUDA device.", True
    generator = torch.Generator(setting.device).manual_seed(10)
    rows, holds = [], True
    for comparison, kind in itertools.product(compared, MODES):
        lines, good = replays.replayed(comparison.subject, kind, generator)
        rows += [[comparison.gumbel, kind, *line] for line in lines]
        holds = holds and good
    table = markdown(["noise", "drafts", *replays.TITLES], rows, words=3)
    return f"Replays of CUDA graphs, all inputs changed in place, against eager calls:\n\n{table}", holds


def _chain(output: VerifyOutput, request: int) -> str:
    """Write the tokens of a request, the number of accepted drafts, and the validity."""
    tokens, accepted = output.token_ids[request].tolist(), int(output.num_accepted[request])
    said = " ".join(str(token) for token in tokens if token != -1)
    return f"{said} ({accepted})" + ("" if bool(output.valid[request]) else ", not valid")


def _described(cell: DraftCell) -> list[str]:
    return [str(cell.vocab_size), cell.dtype, cell.family, cell.filters]
