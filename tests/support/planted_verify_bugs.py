"""Verifications with one bug each: the native one with a piece of it exchanged for the length of a call."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from tokendraw import BatchFacts, philox, speculative
from tokendraw_native.chain import num_accepted
from tokendraw_native.draw import DRAFT, RESIDUAL, draw
from verifying import native


class Honest:
    """The native sampler, with places to go wrong in."""

    def __init__(self, device, need=None):
        self.sampler = native(device, *(() if need is None else (need.gumbel_dtype, need.logprobs_mode)))
        self.sample = self.sampler.sample

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        with mock.patch.dict(vars(pieces), self.pieces()):
            return self.sampler.verify(*self.change(target_logits, drafts, metadata), mode=mode)

    def change(self, target_logits, drafts, metadata):
        return target_logits, drafts, metadata

    def pieces(self):
        return {}


class ResidualSharesTheDraftsNoise(Honest):
    """The recovered token is drawn with the noise of the draft that it takes the place of."""

    def pieces(self):
        return {"RESIDUAL": DRAFT}


class RecoveredFromTheTarget(Honest):
    """The recovered token is drawn from p."""

    def pieces(self):
        return {"residual": lambda p, q: p}


class AcceptanceSharesTheDraftsNoise(Honest):
    """u is made of the words that drew the draft's likeliest tokens."""

    def pieces(self):
        return {"philox": mock.Mock(wraps=philox, ACCEPT=philox.DRAFT_TOKEN)}


class AcceptsAtZero(Honest):
    """u is in [0, 1), and a draft is accepted if u <= p / q."""

    def pieces(self):
        return {"accepts": lambda u, p, q: (q > 0) & (u - 0.5 / 2**32 <= p / q)}


class RejectsAtOne(Honest):
    """u is rounded to float32, which reaches 1."""

    def pieces(self):
        return {"accepts": lambda u, p, q: (q > 0) & (u.float() < (p / q).float())}


class UnfilteredTarget(Honest):
    """p is the softmax of the target's logits, without filters."""

    def change(self, target_logits, drafts, metadata):
        off = dict.fromkeys(("top_k", "top_p", "min_p", "joint"))
        return target_logits, drafts, replace(metadata, **off, facts=BatchFacts(any_greedy=False))


class BonusFromTheRowBefore(Honest):
    """The bonus token is drawn from the row of the last draft."""

    def change(self, target_logits, drafts, metadata):
        rows = torch.arange(len(target_logits), device=target_logits.device)
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        rows[bonus] = (bonus - 1).clamp(min=0)
        return target_logits[rows], drafts, metadata


class PlaceholdersAreSkipped(Honest):
    """The walk goes on behind a placeholder, as if none had been there."""

    def pieces(self):
        return {"num_accepted": lambda chain, accepted: num_accepted(chain, accepted | (chain.drafted < 0))}

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        steps = torch.arange(output.token_ids.shape[1], device=output.token_ids.device)
        skipped = (output.token_ids < 0) & (steps <= output.num_accepted.unsqueeze(1))
        order = skipped.int().argsort(dim=1, stable=True)
        return replace(
            output,
            token_ids=output.token_ids.gather(1, order),
            num_accepted=output.num_accepted - skipped.sum(1).int(),
        )


class PaddedWithZeros(Honest):
    """What stands behind the last token is token 0."""

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        return replace(output, token_ids=output.token_ids.clamp(min=0))


class CoupledWithoutTiles(Honest):
    """The target's own tokens are drawn with the noise of residuals."""

    def pieces(self):
        return {"draw": lambda *args: draw(*args, RESIDUAL)}


class EveryRowCounts(Honest):
    """A request is invalid as soon as one of its rows is, used or not."""

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        request = speculative.row_index(drafts.cu_num_logits, len(target_logits))
        wrong = target_logits.isnan().any(-1).int()
        return replace(
            output,
            valid=output.valid
            & (torch.zeros_like(output.valid, dtype=torch.int32).index_add(0, request, wrong) == 0),
        )


class GreedyOnATieTakesTheLast(Honest):
    """The argmax of a greedy request is the highest id on a tie."""

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        last = target_logits.shape[1] - 1
        cold = (metadata.per_row("temperature") == 0).unsqueeze(1)
        best = last - target_logits.flip(1).argmax(1, keepdim=True)
        ids = torch.arange(last + 1, device=target_logits.device)
        return super().verify(
            target_logits.masked_fill(cold & (ids != best), -torch.inf), drafts, metadata, mode=mode
        )


class KeptMassOfTheFirstRow(Honest):
    """Every token of a request has the log_kept_mass of the request's first row."""

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        mass = output.log_kept_mass
        if mass is None:
            return output
        return replace(output, log_kept_mass=torch.where(mass > -torch.inf, mass[:, :1], mass))


class KeptMassBehindTheLastToken(Honest):
    """log_kept_mass is 0 behind the last token of a request."""

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        mass = output.log_kept_mass
        return replace(output, log_kept_mass=None if mass is None else mass.nan_to_num(neginf=0.0))


class ShareRoundedBeforeItsLogarithm(Honest):
    """processed_logprobs are temperature_logprobs less the logarithm of a share that was rounded to float32."""

    def __init__(self, device, need=None):
        self.is_processed = need is not None and need.logprobs_mode == "processed_logprobs"
        super().__init__(
            device, replace(need, logprobs_mode="temperature_logprobs") if self.is_processed else need
        )

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        best = output.logprobs
        if best is None or not self.is_processed:
            return output
        shift = output.log_kept_mass.exp().log().nan_to_num(neginf=0.0).unsqueeze(-1)
        return replace(output, logprobs=replace(best, logprobs=best.logprobs - shift))


class InPlace(Honest):
    """Ids beyond the vocabulary are made placeholders in the caller's own tensor."""

    def change(self, target_logits, drafts, metadata):
        ids = drafts.draft_token_ids
        ids.masked_fill_(ids >= target_logits.shape[1], -1)
        return target_logits, drafts, metadata


class SlotOfTheRow(Honest):
    """Row i has the seed of request i."""

    def change(self, target_logits, drafts, metadata):
        if metadata.seed is None:
            return target_logits, drafts, metadata
        rows = torch.arange(len(target_logits), device=target_logits.device)
        seed = torch.where(rows < 2, metadata.per_row("seed"), metadata.seed[rows % len(metadata.seed)])
        fields = ("temperature", "top_k", "top_p", "min_p", "seeded", "joint", "logprobs")
        spread = {name: metadata.per_row(name) for name in fields}
        return target_logits, drafts, replace(metadata, **spread, seed=seed, row_index=None)
