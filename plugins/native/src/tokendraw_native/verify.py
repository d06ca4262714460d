"""Chain verification of drafts: tokens from exactly the target's distribution, several for one pass of the target.

The drafts of a request are walked in order; what is emitted is the accepted ones and one token more. With p what
``sample`` draws from at the row that judges a draft x, and q what x was drawn from, there are two ways.

``rejection`` (Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023; Chen et
al., "Accelerating large language model decoding with speculative sampling", 2023): x is accepted if u < p(x) / q(x).
The first that is not gives way to a token recovered from the residual max(p - q, 0). If all are accepted, the bonus
token is drawn from p of the bonus row.

``coupled``: at every row the token is drawn that ``sample`` draws there, and drafts are accepted while they are that
token. It needs no q, and the text is token for token what it would be without drafts.

====================  ======================================================================================
token                 noise, at the seed and the position of its row
====================  ======================================================================================
a draft               u of ACCEPT at index 0
a recovered token     RESIDUAL_TOKEN and RESIDUAL_TILE, in the two levels of :mod:`tokendraw_native.draw`
any other             TOKEN and TILE: it is the very one that ``sample`` draws
====================  ======================================================================================

* p and q are float64, u lies in (0, 1). So p(x) = 0 always rejects and p(x) = q(x) > 0 always accepts. q(x) = 0
  rejects: x cannot have been drawn.
* A greedy request accepts the argmax, the lowest id on a tie, and emits it where a draft is another one.
* A placeholder was drawn from nothing, so q is 0 and the residual is p itself; see :class:`tokendraw.Drafts`.
* A draft that was chosen, not drawn, has q(x) = 1: it is accepted with probability p(x), and the residual is p
  without x.
* Where rounding leaves nothing of a residual, the token is recovered from p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Drafts, SamplingMetadata, VerifyOutput, philox, speculative
from tokendraw.plugin import PAD_TOKEN_ID, GumbelDtype, LogprobsMode, VerifyMode, logprobs_by_step
from tokendraw_native.chain import Chain, num_accepted
from tokendraw_native.distributions import Chosen, Distribution, Given, Processed
from tokendraw_native.draw import RESIDUAL, draw, draw_or_recover
from tokendraw_native.logprobs import logprobs
from tokendraw_native.request import Noise, Request
from tokendraw_native.survey import stretches, survey


def verify(
    target_logits: Tensor,
    drafts: Drafts,
    metadata: SamplingMetadata,
    *,
    mode: VerifyMode,
    gumbel_dtype: GumbelDtype,
    logprobs_mode: LogprobsMode,
    ranked: bool = True,
) -> VerifyOutput:
    """Verify the drafts of B requests.

    :param target_logits: [L, V].
    :param metadata: of the L rows. Those without a seed get fresh ones, each its own.
    """
    rows, width = len(target_logits), metadata.facts.logprobs_width(target_logits.shape[1])
    request = Request.of(metadata, rows, target_logits.device)
    noise = Noise.of(metadata, rows, target_logits.device)
    found = survey(target_logits, request, masses=width is not None)
    target, chain = Processed(target_logits, found, request), Chain.of(drafts, rows)
    if mode == "coupled" or metadata.facts.all_greedy:
        count, last, valid = _coupled(target, chain, noise, gumbel_dtype)
    else:
        count, last, valid = _rejection(target, drafts, chain, noise, gumbel_dtype)
    tokens = torch.where(chain.up_to(count), chain.by_step(chain.drafted), last.unsqueeze(-1))
    emitted = chain.up_to(count + 1)
    tokens = torch.where(emitted, tokens, PAD_TOKEN_ID)
    best = None
    if width is not None:
        shown = tokens[chain.request, chain.offset.clamp(max=drafts.max_drafts)].clamp(min=0)
        wanted = metadata.per_row("logprobs")
        best = logprobs(target_logits, shown, found, request, logprobs_mode, width, wanted, ranked=ranked)
        best = logprobs_by_step(best, drafts.cu_num_logits, count, drafts.max_drafts)
    return VerifyOutput(tokens, count.to(torch.int32), (chain.by_step(valid) | ~emitted).all(-1), best)


def _coupled(
    target: Processed, chain: Chain, noise: Noise, dtype: GumbelDtype
) -> tuple[Tensor, Tensor, Tensor]:
    """How many drafts are accepted [B], the token after them [B], and whether each row is valid [L]."""
    token = draw(target.logits, target.survey, target.request, noise, dtype)
    count = num_accepted(chain, chain.drafted == token)
    return count, token[chain.first + count], target.valid


def _rejection(
    target: Processed, drafts: Drafts, chain: Chain, noise: Noise, dtype: GumbelDtype
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`_coupled`."""
    vocab_size, greedy = target.logits.shape[-1], target.request.greedy
    drawn = (chain.drafted >= 0) & (chain.drafted < vocab_size)
    ids = torch.where(drawn, chain.drafted, 0)
    draft, beside = _draft_distribution(drafts, chain, ids, target.request, vocab_size)
    rows = torch.arange(len(ids), device=ids.device)
    u = noise.uniform(philox.ACCEPT, dtype).squeeze(-1)
    accepted = drawn & accepts(u, target.at(rows, ids), draft.at(beside, ids))
    if greedy is not None:
        greedy = greedy.squeeze(-1)
        best = draw(target.logits, target.survey, target.request, None, dtype)
        accepted, drawn = torch.where(greedy, chain.drafted == best, accepted), drawn & ~greedy
    count = num_accepted(chain, accepted)
    row = chain.first + count
    plain = count == chain.num_drafts
    if greedy is not None:
        plain = plain | greedy[row]
    token = _after_accepted(target, draft, row, beside[row], drawn[row], plain, noise, dtype)
    return count, token, target.valid & (draft.valid[beside] | ~drawn)


def accepts(u: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Whether a draft of probabilities p and q is accepted: [n] bool."""
    return (q > 0) & (u < p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What p [n, V] has more than q [n, V], as weights; p where that is nothing."""
    more = (p - q).clamp_(min=0.0)
    return torch.where(more.amax(-1, keepdim=True) > 0, more, p)


def _draft_distribution(
    drafts: Drafts, chain: Chain, ids: Tensor, request: Request, vocab_size: int
) -> tuple[Distribution, Tensor]:
    """What the drafts were drawn from, and its row beside each row of the target: [L] int64, any at bonus rows."""
    row = torch.arange(len(ids), device=ids.device)
    total = len(ids) - drafts.num_requests
    if total and drafts.draft_probs is not None:
        found: Distribution = Given(drafts.draft_probs)
    elif total and drafts.draft_logits is not None:
        own = request.chunk(speculative.target_rows(drafts.cu_num_logits, total))
        found = Processed(drafts.draft_logits, survey(drafts.draft_logits, own, masses=False), own)
    else:
        return Chosen(ids, vocab_size), row
    return found, (row - chain.request).clamp(max=total - 1)


def _after_accepted(
    target: Processed,
    draft: Distribution,
    row: Tensor,
    beside: Tensor,
    drawn: Tensor,
    plain: Tensor,
    noise: Noise,
    dtype: GumbelDtype,
) -> Tensor:
    """The token that follows the accepted drafts: [B] int64.

    :param row: [B] int64: the target's row that makes it; ``beside`` [B] is that of the draft, if there is one.
    :param drawn: [B] bool: whether a draft is rejected there that was drawn from something.
    :param plain: [B] bool: whether it is what ``sample`` would draw.
    """
    tokens = []
    for part in stretches(len(row), target.logits):
        at = row[part]
        p, q = target.of(at), draft.of(beside[part]) * drawn[part].unsqueeze(-1)
        found, request = target.survey.chunk(at), target.request.chunk(at)
        more = residual(p, q)
        tokens.append(
            draw_or_recover(
                target.logits[at], found, more, plain[part], request, noise.chunk(at), dtype, RESIDUAL
            )
        )
    return torch.cat(tokens)
