"""Verifiers with a bug in every call: native with an exchanged function or changed arguments and outputs."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw
import tokendraw_native.verify as pieces
from mutants import Mutant, table
from tokendraw import BatchFacts, philox, speculative
from tokendraw_native import plugin
from tokendraw_native.chain import num_accepted
from tokendraw_native.draw import DRAFT, RESIDUAL, draw
from tokendraw_native.sampler import NativeSampler

OPERATIONS = plugin.tokendraw_describe().operations
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seeded", "joint", "logprobs")


class VerifierMutant:
    """The native verifier, with hooks for arguments, output and called functions."""

    exchanged = {}  # noqa: RUF012  (the names of tokendraw_native.verify that a mutant replaces)
    mode_of_logprobs = None

    def __init__(self, need=None, device="cpu"):
        need = need or tokendraw.Need()
        self.is_changed = need.logprobs_mode == self.mode_of_logprobs
        if self.is_changed:
            need = replace(need, logprobs_mode="temperature_logprobs")
        self.sampler = NativeSampler(torch.device(device), need)

    def sample(self, *arguments, **options):
        return self.sampler.sample(*arguments, **options)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        with mock.patch.dict(vars(pieces), self.exchanged):
            output = self.sampler.verify(*self.change(target_logits, drafts, metadata), mode=mode)
        return self.output(output, target_logits, drafts)

    def change(self, target_logits, drafts, metadata):
        return target_logits, drafts, metadata

    def output(self, output, target_logits, drafts):
        return output


def unfiltered(self, target_logits, drafts, metadata):
    off = dict.fromkeys(("top_k", "top_p", "min_p", "joint"))
    return target_logits, drafts, replace(metadata, **off, facts=BatchFacts(any_greedy=False))


def bonus_from_the_row_before(self, target_logits, drafts, metadata):
    rows = torch.arange(len(target_logits), device=target_logits.device)
    bonus = speculative.bonus_rows(drafts.cu_num_logits)
    rows[bonus] = (bonus - 1).clamp(min=0)
    return target_logits[rows], drafts, metadata


def without_placeholders(self, output, target_logits, drafts):
    steps = torch.arange(output.token_ids.shape[1], device=output.token_ids.device)
    skipped = (output.token_ids < 0) & (steps <= output.num_accepted.unsqueeze(1))
    order = skipped.int().argsort(dim=1, stable=True)
    return replace(
        output,
        token_ids=output.token_ids.gather(1, order),
        num_accepted=output.num_accepted - skipped.sum(1).int(),
    )


def zeros_behind(self, output, target_logits, drafts):
    return replace(output, token_ids=output.token_ids.clamp(min=0))


def every_row_counts(self, output, target_logits, drafts):
    request = speculative.row_index(drafts.cu_num_logits, len(target_logits))
    nan = torch.zeros_like(output.valid, dtype=torch.int32)
    nan = nan.index_add(0, request, target_logits.isnan().any(-1).int())
    return replace(output, valid=output.valid & (nan == 0))


def last_of_greedy_ties(self, target_logits, drafts, metadata):
    last = target_logits.shape[1] - 1
    cold = (metadata.per_row("temperature") == 0).unsqueeze(1)
    best = last - target_logits.flip(1).argmax(1, keepdim=True)
    ids = torch.arange(last + 1, device=target_logits.device)
    return target_logits.masked_fill(cold & (ids != best), -torch.inf), drafts, metadata


def mass_of_first_row(self, output, target_logits, drafts):
    mass = output.log_kept_mass
    if mass is None:
        return output
    return replace(output, log_kept_mass=torch.where(mass > -torch.inf, mass[:, :1], mass))


def mass_behind_last_token(self, output, target_logits, drafts):
    mass = output.log_kept_mass
    return replace(output, log_kept_mass=None if mass is None else mass.nan_to_num(neginf=0.0))


def less_rounded_share(self, output, target_logits, drafts):
    best = output.logprobs
    if best is None or not self.is_changed:
        return output
    shift = output.log_kept_mass.exp().log().nan_to_num(neginf=0.0).unsqueeze(-1)
    return replace(output, logprobs=replace(best, logprobs=best.logprobs - shift))


def placeholders_in_place(self, target_logits, drafts, metadata):
    ids = drafts.draft_token_ids
    ids.masked_fill_(ids >= target_logits.shape[1], -1)
    return target_logits, drafts, metadata


def seeds_by_row(self, target_logits, drafts, metadata):
    if metadata.seed is None:
        return target_logits, drafts, metadata
    rows = torch.arange(len(target_logits), device=target_logits.device)
    seed = torch.where(rows < 2, metadata.per_row("seed"), metadata.seed[rows % len(metadata.seed)])
    spread = {name: metadata.per_row(name) for name in COLUMNS}
    return target_logits, drafts, replace(metadata, **spread, seed=seed, row_index=None)


def verifier_mutant(verifier, *lines, capabilities=OPERATIONS["verify"], **options):
    """Return a verifier class of a test as a mutant."""
    return Mutant(
        name=verifier.__name__,
        operation="verify",
        lines=lines,
        build=verifier,
        capabilities=OPERATIONS | {"verify": capabilities},
        options={"quick": True} | options,
    )


# fmt: off
VERIFIERS = tuple(replace(mutant, capabilities=OPERATIONS) for mutant in table("verify", None, VerifierMutant, (
    ("a recovered token has the noise of the draft in whose place it stands", "verify rejection",
     {"exchanged": {"RESIDUAL": DRAFT}}),
    ("a recovered token is drawn from p", "verify rejection", {"exchanged": {"residual": lambda p, q: p}}),
    ("acceptance by the words that drew the draft's likeliest tokens", "verify rejection",
     {"exchanged": {"philox": mock.Mock(wraps=philox, ACCEPT=philox.DRAFT_TOKEN)}}),
    ("u in [0, 1), accepted if u <= p / q", "verify sure drafts",
     {"exchanged": {"accepts": lambda u, p, q: (q > 0) & (u - 0.5 / 2**32 <= p / q)}}),
    ("u rounded to float32, which reaches 1", "verify sure drafts",
     {"exchanged": {"accepts": lambda u, p, q: (q > 0) & (u.float() < (p / q).float())}}),
    ("p without filters", "verify filters", {"change": unfiltered}),
    ("bonus token from the row of the last draft", "verify bonus", {"change": bonus_from_the_row_before}),
    ("placeholders skipped", "verify placeholders", {"exchanged": {
        "num_accepted": lambda chain, accepted: num_accepted(chain, accepted | (chain.drafted < 0))},
        "output": without_placeholders}),
    ("token 0 behind the last token", "verify output", {"output": zeros_behind}),
    ("coupled tokens drawn with the noise of residuals", "verify coupled",
     {"exchanged": {"draw": lambda *args: draw(*args, RESIDUAL)}}),
    ("a request invalid by a row that it does not use", "verify poisoned rows", {"output": every_row_counts}),
    ("greedy requests take the highest id on a tie", "verify greedy rows", {"change": last_of_greedy_ties}),
    ("log_kept_mass of the request's first row for every token", "verify logprobs", {"output": mass_of_first_row}),
    ("log_kept_mass 0 behind the last token", "verify logprobs", {"output": mass_behind_last_token}),
    ("processed logprobs of a verification above 0", "verify logprob bounds",
     {"mode_of_logprobs": "processed_logprobs", "output": less_rounded_share}),
    ("ids beyond the vocabulary replaced in place", "verify inputs unmodified", {"change": placeholders_in_place}),
    ("row i with the seed of request i", "verify batch invariance", {"change": seeds_by_row}),
), options={"quick": True}))
# fmt: on
MUTANTS = {"Verifiers": VERIFIERS}
