"""Draws text with speculation: a small model drafts a few tokens, the target judges all of them in one evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from tokendraw.calls.row_requirements import Rows
from tokendraw.cli.demo.generation import LanguageModel
from tokendraw.cli.demo.requests import Editor, Requests, requests_of
from tokendraw.cli.describe import served_by
from tokendraw.operations.verify.capabilities import VerifyMode
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams
from tokendraw.providers.sampler import Sampler

Mode: TypeAlias = VerifyMode


@dataclass
class Tally:
    """Counts what speculation saved for one text."""

    evaluations: int = 0
    """Evaluations of the target: one for each step, however many drafts it judges."""
    tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    """Number of steps that had a 1st draft, a 2nd, and so on."""
    accepted: list[int] = field(default_factory=list)
    """Number of these steps in which that draft was accepted."""

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step."""
        self.evaluations += 1
        self.tokens += accepted + 1
        for counts, number in ((self.drafted, drafted), (self.accepted, accepted)):
            counts.extend([0] * (drafted - len(counts)))
            for place in range(number):
                counts[place] += 1

    @property
    def speedup(self) -> float:
        """Tokens per evaluation of the target; 1 without drafts."""
        return self.tokens / self.evaluations

    def lines(self) -> list[str]:
        """Report the counts in two sentences, or in one if there was nothing to draft."""
        found = [
            f"{self.tokens} token{'s' * (self.tokens > 1)} from {self.evaluations} "
            f"evaluation{'s' * (self.evaluations > 1)} of the target, where plain sampling takes {self.tokens}: "
            f"{self.speedup:.2f} times fewer"
        ]
        if self.drafted:
            each = ", ".join(
                f"{_ordinal(place)} {accepted} of {drafted} ({100 * accepted / drafted:.0f} %)"
                for place, (drafted, accepted) in enumerate(
                    zip(self.drafted, self.accepted, strict=True), start=1
                )
            )
            found.append(f"{sum(self.accepted) / self.evaluations:.2f} drafts accepted a step: {each}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return everything that :meth:`lines` reports, as numbers."""
        return {
            "evaluations": self.evaluations,
            "speedup": self.speedup,
            "drafted": self.drafted,
            "accepted": self.accepted,
        }


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Settings of speculation: the model that drafts, and how drafts are verified."""

    target: LanguageModel
    draft: LanguageModel
    """Draft model with the target's vocabulary."""
    sampler: Sampler
    drafts: int
    """Most drafts in a step."""
    mode: Mode
    editor: Editor | None = None
    """Edits the logits of both models; needed if a request asks for that."""
    stop: frozenset[int] = frozenset()
    """Token ids that end a text."""

    def draw_tokens(
        self, prompt: Sequence[int], params: Sequence[SamplingParams], count: int, tallies: list[Tally]
    ) -> Iterator[list[list[int]]]:
        """Continue one prompt under several settings, and yield the next token ids for each of ``params`` at each step.

        Each gets ``count`` in the end, unless it is stopped before, and none is drawn in vain: a step that lacks n
        tokens drafts n - 1 at most.

        ``rejection`` drafts with noise that verification never uses, and accepts by what the draft was drawn from.
        ``coupled`` looks at the drafted id alone, so that any noise is exact; the draft is drawn with the target's
        own, by plain sampling at the same seeds and positions, which makes the two agree far more often than by
        chance. That takes seeds: a setting without one gets a fresh one.

        :param tallies: gets one for each setting, which counts its steps.
        """
        if self.mode == "coupled":
            params = [p if p.seed is not None else replace(p, seed=_fresh_seed()) for p in params]
        requests = requests_of(params, self.sampler.device, prompt, count, self.editor)
        tallies[:] = [Tally() for _ in params]
        sequences = [list(prompt) for _ in params]
        end = len(prompt) + count
        unfinished = list(range(len(params)))
        while unfinished:
            step = self._step(requests, unfinished, [sequences[i] for i in unfinished], end)
            emitted: list[list[int]] = [[] for _ in params]
            for i, (drafted, tokens) in zip(unfinished, step, strict=True):
                emitted[i] = self._until_stopped(tokens)
                tallies[i].add(drafted, len(emitted[i]) - 1)
                sequences[i] += emitted[i]
            yield emitted
            unfinished = [
                i for i in unfinished if len(sequences[i]) < end and emitted[i][-1] not in self.stop
            ]

    def _until_stopped(self, tokens: list[int]) -> list[int]:
        ends = [place for place, token_id in enumerate(tokens, start=1) if token_id in self.stop]
        return tokens[: ends[0]] if ends else tokens

    def _step(
        self, requests: Requests, rows: Sequence[int], sequences: Sequence[Sequence[int]], end: int
    ) -> list[tuple[int, list[int]]]:
        """Run one step: return for each sequence its number of drafts and the tokens that it continues with."""
        counts = [min(self.drafts, end - len(sequence) - 1) for sequence in sequences]
        drafted, logits = self._drafted(requests, rows, sequences, counts)
        device = self.sampler.device
        drafts = Drafts.from_lists(
            drafted,
            device=device,
            draft_logits=torch.stack(logits) if self.mode == "rejection" and logits else None,
        )
        contexts = [
            [*sequence, *ids[:place]]
            for sequence, ids in zip(sequences, drafted, strict=True)
            for place in range(len(ids) + 1)
        ]
        output = self.sampler.verify(
            requests.edited(self.target.logits(contexts).to(device), rows, drafts),
            drafts,
            requests.metadata(rows, _positions(sequences)),
            mode=self.mode,
        )
        requests.append_verified(rows, output)
        accepted = output.num_accepted.tolist()
        return [
            (count, tokens[: n + 1])
            for count, tokens, n in zip(counts, output.token_ids.tolist(), accepted, strict=True)
        ]

    def _drafted(
        self,
        requests: Requests,
        rows: Sequence[int],
        sequences: Sequence[Sequence[int]],
        counts: Sequence[int],
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """Draw drafts for each sequence, position by position; return their ids, and [V] logits for each of them.

        Edits count what is in the text, and none of the drafts before: whatever a draft is drawn from, verification
        makes it right.
        """
        draw = self.sampler.sample if self.mode == "coupled" else self.sampler.draft
        drafted: list[list[int]] = [[] for _ in sequences]
        logits: list[list[torch.Tensor]] = [[] for _ in sequences]
        for place in range(max(counts)):
            drafting = [i for i, count in enumerate(counts) if place < count]
            contexts = [[*sequences[i], *drafted[i]] for i in drafting]
            chosen = [rows[i] for i in drafting]
            edited = requests.edited(self.draft.logits(contexts).to(self.sampler.device), chosen)
            drawn = draw(edited, requests.metadata(chosen, _positions(contexts))).token_ids.tolist()
            for i, token_id, row in zip(drafting, drawn, edited, strict=True):
                drafted[i].append(token_id)
                logits[i].append(row)
        return drafted, [row for of_one in logits for row in of_one]


def _positions(contexts: Sequence[Sequence[int]]) -> list[int]:
    """Return the position of the draw after each context: that of the context's last token."""
    return [len(context) - 1 for context in contexts]


def _fresh_seed() -> int:
    return int(torch.randint(2**63 - 1, ()))


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def verified_by(sampler: Sampler, requests: Sequence[SamplingParams], mode: VerifyMode) -> str:
    """Say in one line which sampler verifies the drafts of requests, all of which go to one sampler.

    :param mode: ``coupled`` gives a seed to each request that has none.
    """
    seeded = [replace(params, seed=0) for params in requests] if mode == "coupled" else requests
    facts = SamplingMetadata.from_params(seeded, positions=[0] * len(seeded)).facts
    selection = sampler._verifier.selection
    backend, companion = selection.backend, selection.companion
    is_served = mode in backend.capabilities.verify_modes and backend.reason_against(Rows(facts, 0)) is None
    name = backend.name if is_served or companion is None else companion.name
    return served_by(sampler, selection.resolution, "verified", "verifies", {name: len(requests)})
