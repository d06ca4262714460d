"""Verifiers with a bug in every call: native with an exchanged function or changed arguments and outputs."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw
from mutants import Mutant, table
from mutants.corners import exchange, given, kept_mass, threshold, tokens, verify
from mutants.sample_corners import off
from mutants.samplers import (
    FLAT_MASS,
    FLAT_P,
    cut_mass,
    halved_in_flat_rows,
    in_nucleus,
)
from mutants.verify_corners import from_row_before_bonus, last_tie_only, processed
from tokendraw import philox
from tokendraw_native import plugin
from tokendraw_native.draw import DRAFT, RESIDUAL, Streams, draw
from tokendraw_native.sampler import NativeSampler
from tokendraw_native.verify import _last_token as last_token
from tokendraw_native.verify import num_accepted, num_accepted_in_block

OPERATIONS = plugin.tokendraw_describe().operations


class VerifierMutant:
    """The native verifier, with hooks for arguments and output."""

    def __init__(self, need=None, device="cpu"):
        need = need or tokendraw.Need()
        self.sampler = NativeSampler(torch.device(device), need)

    def sample(self, *arguments, **options):
        return self.sampler.sample(*arguments, **options)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = self.sampler.verify(*self.change(target_logits, drafts, metadata), mode=mode)
        return self.output(output, target_logits, drafts)

    def change(self, target_logits, drafts, metadata):
        return target_logits, drafts, metadata

    def output(self, output, target_logits, drafts):
        return output


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


def in_every_call(name, line, **hooks):
    """A bug in every verification of every dtype."""
    return verify(name, line, all_dtypes=True, **hooks)


def without_placeholders(call, output):
    steps = torch.arange(output.token_ids.shape[1], device=output.token_ids.device)
    skipped = (output.token_ids < 0) & (steps <= output.num_accepted.unsqueeze(1))
    order = skipped.int().argsort(dim=1, stable=True)
    accepted = output.num_accepted - skipped.sum(1).int()
    return replace(output, token_ids=output.token_ids.gather(1, order), num_accepted=accepted)


def every_row_counts(call, output):
    nan = torch.zeros_like(output.valid, dtype=torch.int32)
    nan = nan.index_add(0, call.row_requests, call.logits.isnan().any(-1).int())
    return replace(output, valid=output.valid & (nan == 0))


def placeholders_in_place(call):
    call.drafts.draft_token_ids.masked_fill_(call.drafts.draft_token_ids >= call.size, -1)
    return call


def seeds_by_row(call):
    first = call.metadata.seed[call.first_rows]
    seed = torch.where(call.row < 2, call.metadata.seed, first[call.row % len(first)])
    return call.with_fields(seed=torch.where(call.unseeded, call.metadata.seed, seed))


def uncapped(chain, p, q, is_drawn):
    ratio = chain.by_step(torch.where(is_drawn & (q > 0), p / q, 0.0))
    return torch.cat((torch.ones_like(ratio[:, :1]), ratio[:, :-1].cumprod(-1)), -1)


def without_share(target, draft, row, draft_row, is_drawn, is_plain, share, noise, dtype):
    return last_token(target, draft, row, draft_row, is_drawn, is_plain, None, noise, dtype)


def in_block(change):
    """Accept in a block with changed arguments."""
    return exchange(num_accepted_in_block=lambda *args: num_accepted_in_block(*change(*args)))


# fmt: off
VERIFIERS = (
    *table("verify", OPERATIONS["verify"], VerifierMutant, (
        (f"{FLAT_P}, in verifications", "verify kept sets", in_nucleus(
            VerifierMutant, "verify", halved_in_flat_rows)),
        (f"{FLAT_MASS}, in verifications", "verify kept sets", in_nucleus(VerifierMutant, "verify", cut_mass)),
    ), options={"quick": True}),
    in_every_call("a recovered token has the noise of the draft in whose place it stands", "verify distribution",
                  patch=exchange(RESIDUAL=DRAFT)),
    in_every_call("a recovered token has the tile noise of a plain draw", "verify crossing",
                  patch=exchange(RESIDUAL=Streams(philox.RESIDUAL_TOKEN, philox.TILE))),
    in_every_call("a recovered token is drawn from p", "verify distribution",
                  patch=exchange(residual=lambda p, q: p)),
    in_every_call("acceptance by the words that drew the draft's likeliest tokens", "verify distribution",
                  patch=exchange(philox=mock.Mock(wraps=philox, ACCEPT=philox.DRAFT_TOKEN))),
    in_every_call("u in [0, 1), accepted if u <= p / q", "verify sure drafts",
                  patch=exchange(accepts=lambda u, p, q: (q > 0) & (u - 0.5 / 2**32 <= p / q))),
    in_every_call("u rounded to float32, which reaches 1", "verify sure drafts",
                  patch=exchange(accepts=lambda u, p, q: (q > 0) & (u.float() < (p / q).float()))),
    in_every_call("block: the residual without r", "verify distribution", patch=exchange(_last_token=without_share)),
    in_every_call("block: r not capped", "verify distribution", patch=exchange(block_shares=uncapped)),
    in_every_call("block: one u for all drafts", "verify crossing", patch=in_block(
        lambda chain, shares, excess, u: (chain, shares, excess, u[:, :1].expand_as(u)))),
    in_every_call("p without filters", "verify distribution", change=off("top_k", "top_p", "min_p", "joint")),
    in_every_call("q without filters from moments", "verify further filters",
                  patch=processed(lambda params: replace(params, filters=None, filter_names=()))),
    in_every_call("bonus token from the row of the last draft", "verify distribution", change=from_row_before_bonus),
    in_every_call("placeholders skipped", "verify crossing", output=without_placeholders, patch=exchange(
        num_accepted=lambda chain, accepted: num_accepted(chain, accepted | (chain.drafted < 0)))),
    in_every_call("given ids have the logprobs of the next step", "verify crossing",
                  output=given(lambda call, ids, values: (ids, values.roll(-1, 1)))),
    in_every_call("token 0 behind the last token", "verify output", output=tokens(lambda call, ids: ids.clamp(min=0))),
    in_every_call("coupled tokens drawn with the noise of residuals", "verify crossing",
                  patch=exchange(draw=lambda *args: draw(*args, RESIDUAL))),
    in_every_call("a request invalid by a row that it does not use", "verify crossing", output=every_row_counts),
    in_every_call("greedy requests take the highest id on a tie", "verify crossing", change=last_tie_only),
    in_every_call("log_kept_mass 0 behind the last token", "verify crossing",
                  output=kept_mass(lambda call, mass: mass.nan_to_num(neginf=0.0))),
    in_every_call("the threshold of the request's first row for every row", "verify crossing", output=threshold(
        lambda call, found: found[call.first_rows[call.row_requests]])),
    in_every_call("ids beyond the vocabulary replaced in place", "verify inputs unmodified",
                  change=placeholders_in_place),
    in_every_call("row i with the seed of request i", "verify batch invariance", unseeded=False, change=seeds_by_row),
)
# fmt: on
MUTANTS = {"Verifiers": VERIFIERS}
