"""Makes requests with drafts of every verifiable kind, laid out on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import Drafts, SamplingMetadata, SamplingParams, VerifyOutput
from tokendraw.plugin import DraftKind, GumbelDtype, LogprobsMode, VerifyCapabilities, VerifyMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import Family, gaussian, tied, zipf
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import combinations
from tokendraw_testing.verify.subject import VerifySubject, row_metadata

Array = NDArray[Any]

OUTSIDE_ID = 2**31 - 1
"""An id outside every vocabulary."""


def requests(capabilities: VerifyCapabilities, size: int) -> list[SamplingParams]:
    """List the requests to verify: filters per row only, since a batch with scalar filters is never handed over."""
    per_row = tuple((name, how) for name, how in capabilities.filters if how == "per_row")
    return combinations(replace(capabilities, filters=per_row), size)


@dataclass(frozen=True, kw_only=True)
class DraftBatch:
    """Requests with their drafts. Each list has one entry a request."""

    target: list[Array]
    """[n + 1, V] float32."""
    draft: list[Array]
    """[n, V] float32: logits of the drafts."""
    probs: list[Array]
    """[n, V] float32: draft distributions under the parameters of the request."""
    ids: list[list[int]]
    params: list[SamplingParams]
    first: list[int]
    """Position of the first row."""
    dtype: str
    """Dtype of the logits by its torch name; all rows are exact in it."""

    @classmethod
    def of(
        cls,
        subject: VerifySubject,
        rng: Generator,
        count: int,
        size: int,
        seed: bool = True,
        dtype: str | None = None,
    ) -> Self:
        """Make random requests of every kind, with up to 4 drafts near the target, some elsewhere.

        :param seed: whether they bring seeds, if the subject serves any.
        :param dtype: of the logits; None: the first that is advertised.
        """
        capabilities = subject.capabilities
        dtype = dtype or capabilities.dtypes[0]
        request_kinds = requests(capabilities, size)
        families: list[Family] = [gaussian, zipf, *[tied] * (capabilities.tie_rule == "value")]
        seeds, first = random_seeds(rng, count)
        seed_torch(rng)
        batch = cls(target=[], draft=[], probs=[], ids=[], params=[], first=first, dtype=dtype)
        for i in range(count):
            params = request_kinds[-1 if rng.random() < 0.1 else int(rng.integers(len(request_kinds)))]
            n = int(rng.integers(5)) if capabilities.ragged_drafts else 3
            made = [families[i % len(families)](rng, size) for _ in range(n + 1)]
            target = round_to_dtype(np.stack(made), dtype)
            draft = target[:n] + np.float32(rng.choice([0.0, 0.3, 2.0])) * rng.standard_normal((n, size))
            draft = round_to_dtype(draft, dtype)
            probs = [expect(x, params, capabilities.tie_rule).probabilities for x in draft]
            ids = [int(rng.choice(size, p=q)) for q in probs]
            for step in range(n):
                kind = rng.random()
                if kind < 0.1:
                    ids[step] = int(rng.integers(size))
                elif kind < 0.2 and capabilities.placeholder_drafts:
                    ids[step] = int(rng.choice([-1, size, OUTSIDE_ID]))
            is_seeded = seed and capabilities.seeding == "counter"
            batch.target.append(target)
            batch.draft.append(draft)
            batch.probs.append(np.array(probs, np.float32).reshape(n, size))
            batch.ids.append(ids)
            batch.params.append(replace(params, seed=seeds[i]) if is_seeded else params)
        return batch

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> int:
        """V."""
        return int(self.target[0].shape[1])

    def select(self, which: Iterable[int]) -> DraftBatch:
        """Pick some of the requests, in this order."""
        order = [int(i) for i in which]
        names = [name for name in self.__dataclass_fields__ if name != "dtype"]
        return DraftBatch(
            **{name: [getattr(self, name)[i] for i in order] for name in names}, dtype=self.dtype
        )

    def logits(self, subject: VerifySubject) -> torch.Tensor:
        """Return the target's logits [L, V] on the device."""
        return subject.upload(np.concatenate(self.target), self.dtype)

    def drafts(self, subject: VerifySubject, kind: DraftKind) -> Drafts:
        """Return the drafts on the device, given by kind."""
        rows = {"probs": self.probs, "logits": self.draft, "chosen": []}[kind]
        dtype = self.dtype if kind == "logits" else "float32"
        draft_rows = subject.upload(np.concatenate(rows), dtype) if rows else None
        return subject.drafts(self.ids, self.size, kind, draft_rows)

    def metadata(self, drafts: Drafts) -> SamplingMetadata:
        """Return the parameters of the rows."""
        return row_metadata(drafts, self.params, self.first)

    def verify(
        self,
        subject: VerifySubject,
        mode: VerifyMode,
        kind: DraftKind,
        *,
        logprobs_mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> VerifyOutput:
        """Verify all requests in one call."""
        drafts = self.drafts(subject, kind)
        return subject.verify(
            self.logits(subject),
            drafts,
            self.metadata(drafts),
            mode,
            logprobs_mode=logprobs_mode,
            gumbel_dtype=gumbel_dtype,
        )

    def walks(
        self, mode: VerifyMode, kind: DraftKind, dtype: str = "fp32", which: Iterable[int] | None = None
    ) -> list[reference_walk.Answer]:
        """Compute the reference chains of the seeded requests ``which`` (None: all)."""
        order = range(len(self)) if which is None else list(which)
        walks = [
            reference_walk.walking(
                self.target[i],
                self.ids[i],
                self.params[i],
                range(self.first[i], self.first[i] + len(self.target[i])),
                probs=self.probs[i] if kind == "probs" else None,
                logits=self.draft[i] if kind == "logits" else None,
                mode=mode,
            )
            for i in order
        ]
        return reference.together(walks, [self.params[i].seed or 0 for i in order], dtype)

    def walk(self, i: int, mode: VerifyMode, kind: DraftKind, dtype: str = "fp32") -> reference_walk.Answer:
        """Compute the reference chain of request ``i``."""
        return self.walks(mode, kind, dtype, [i])[0]

    def is_certain(self, subject: VerifySubject, i: int) -> bool:
        """Whether neither rounding nor the sampler's choice among ties decides a filter of request ``i``."""
        rule = subject.capabilities.tie_rule
        rows = [expect(x, self.params[i], rule) for x in (*self.target[i], *self.draft[i])]
        return all(row.certain and not row.in_part.any() for row in rows)


def round_to_dtype(values: Array, dtype: str) -> Array:
    """Round to a dtype by its torch name; the result is float32, which holds every value of the dtype."""
    result: Array = torch.from_numpy(np.asarray(values, np.float32)).to(getattr(torch, dtype)).float().numpy()
    return result


def pad_ids(flat: Drafts, ids: list[list[int]], layout: str) -> Drafts:
    """Lay the ids out [B, K + 2], padded with -1, in a short dtype if the layout says so."""
    width = max(map(len, ids), default=0) + 2
    fits_int32 = layout == "padded int32" and all(abs(token) < 2**31 for tokens in ids for token in tokens)
    padded_ids = torch.full(
        (len(ids), width), -1, device=flat.device, dtype=torch.int32 if fits_int32 else torch.int64
    )
    for i, tokens in enumerate(ids):
        padded_ids[i, : len(tokens)] = torch.tensor(tokens, dtype=padded_ids.dtype)
    return Drafts(
        draft_token_ids=padded_ids,
        cu_num_logits=flat.cu_num_logits.to(torch.int32),
        draft_probs=flat.draft_probs,
        draft_logits=flat.draft_logits,
        max_drafts=width,
        any_placeholder=flat.any_placeholder,
    )


def chains(output: VerifyOutput) -> list[list[int]]:
    """Return the tokens of each request, without padding."""
    counts = (output.num_accepted + 1).tolist()
    return [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]


def require_same(trial: Trial, expected: list[list[int]], found: list[list[int]], what: str) -> None:
    """Require equal chains from two calls.

    :raises Violation: they did not; names the first that differs.
    """
    mismatches = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    i = mismatches[0] if mismatches else 0
    trial.require(
        not mismatches,
        f"{what} need the same chains, found {len(mismatches)} others, such as {found[i : i + 1]} in place of "
        f"{expected[i : i + 1]}",
    )
