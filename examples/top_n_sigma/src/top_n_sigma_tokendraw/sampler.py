"""The sampler: plain PyTorch from `tokendraw new`, with an additional filter.

A call never modifies its logits and never waits for a CUDA device. It holds several float64 copies of the logits,
and sorts them where a filter is on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata, philox
from tokendraw.plugin import best_token_ids, pad_logprobs
from top_n_sigma_tokendraw.metadata import TopNSigmaMetadata
from top_n_sigma_tokendraw.n_sigma import kept_count

INF = float("inf")
TILE = philox.TILE_SIZE


class TopNSigmaSampler:
    """The sampler behind `tokendraw.load_sampler("top-n-sigma")`."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._mode = need.logprobs_mode
        self._gumbel_dtype = need.gumbel_dtype
        self._real = torch.float32 if device.type == "mps" else torch.float64  # the widest float it has

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a token in each row of logits [B, V]."""
        x = logits.to(torch.float32).nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        top = x.amax(-1, keepdim=True)
        valid = ~logits.isnan().any(-1) & (top > -INF).squeeze(-1)

        temperature = self._column(metadata, "temperature", 1.0, top)
        greedy = ~(temperature > 0)  # 0; in ready tensors also what lies below it, and NaN
        temperature = temperature.where(~greedy, 1.0).clamp(max=torch.finfo(self._real).max)
        below = self._below(x, top)
        # All the mass of a greedy row lies on its argmax, and of a row of nothing but -inf on token 0.
        argmax = torch.arange(x.shape[-1], device=x.device) == x.argmax(-1, keepdim=True)
        outside = (greedy | (top == -INF)) & ~argmax
        y = (below / temperature).masked_fill_(outside, -INF)

        dropped = outside | (x < self._threshold(x, top, temperature, metadata))
        kept = y.masked_fill(dropped, -INF)
        token = self._draw(kept, metadata)
        if metadata.facts.max_logprobs is None:
            return SamplerOutput(token, valid)
        values, hidden = {
            "raw_logits": (x.to(self._real), torch.zeros_like(dropped)),
            "raw_logprobs": (below, torch.zeros_like(dropped)),
            "temperature_logprobs": (y, outside),
            "processed_logits": (kept, dropped),
            "processed_logprobs": (kept, dropped),
        }[self._mode]
        if self._mode.endswith("_logprobs"):
            values = values.log_softmax(-1)
        best = _logprobs(x, values.masked_fill(x == -INF, -INF), hidden, token, metadata)
        log_kept_mass = (kept.logsumexp(-1) - y.logsumexp(-1)).clamp_(max=0.0)
        return SamplerOutput(token, valid, best, log_kept_mass.to(torch.float32))

    def _threshold(self, x: Tensor, top: Tensor, temperature: Tensor, metadata: SamplingMetadata) -> Tensor:
        """Return the least kept value of each row: [B, 1].

        Each filter keeps some number of the largest values, and the smallest number counts. Comparing x with the last
        value kept keeps all its ties. y would not do for that, since dividing by T may make new ties.
        """
        facts, vocab_size = metadata.facts, x.shape[-1]
        any_n_sigma = isinstance(metadata, TopNSigmaMetadata) and metadata.n_sigma is not None
        if facts.max_top_k == 0 and not facts.any_top_p and not facts.any_min_p and not any_n_sigma:
            return torch.full_like(top, -INF)
        order = x.sort(dim=-1, descending=True).values
        below = self._below(order, top)
        count = torch.full_like(top, vocab_size, dtype=torch.int64)
        if any_n_sigma:
            count = kept_count(order, self._column(metadata, "n_sigma", 0.0, top))
        min_p = self._column(metadata, "min_p", 0.0, top).nan_to_num(nan=0.0).clamp(0, 1)
        count = count.minimum((below >= temperature * min_p.log()).sum(-1, keepdim=True))
        top_k = self._column(metadata, "top_k", 0, top)
        count = count.minimum(top_k.where(top_k > 0, vocab_size))
        count = (order >= order.gather(-1, count - 1)).sum(-1, keepdim=True)  # with the ties of the k-th

        top_p = self._column(metadata, "top_p", 1.0, top).nan_to_num(nan=1.0)
        mass = (below / temperature).exp().cumsum(-1)
        joint = self._column(metadata, "joint", False, top)
        whole = mass.gather(-1, torch.where(joint, vocab_size, count) - 1)
        nucleus = (mass < top_p * whole).sum(-1, keepdim=True) + 1
        count = count.minimum(nucleus.where(top_p < 1, vocab_size))
        return order.gather(-1, count - 1)

    def _draw(self, kept: Tensor, metadata: SamplingMetadata) -> Tensor:
        """Draw a tile by its log-mass plus noise, then a token in the tile, the lowest id on a tie: [B] int64."""
        seed, position = (
            column.unsqueeze(-1)
            for column in philox.seeds_and_positions(metadata, kept.shape[0], kept.device)
        )
        size = min(TILE, kept.shape[-1])
        tiles = pad(kept, (0, -kept.shape[-1] % size), value=-INF)
        tiles = tiles.view(-1, tiles.shape[-1] // size, size)
        index = torch.arange(tiles.shape[1], device=kept.device)
        noise = philox.gumbel(seed, position, index, philox.TILE, self._gumbel_dtype)
        tile = (tiles.exp().sum(-1).log() + noise).argmax(-1, keepdim=True)

        index = tile * TILE + torch.arange(size, device=kept.device)
        noise = philox.gumbel(seed, position, index, philox.TOKEN, self._gumbel_dtype)
        inside = tiles.take_along_dim(tile.unsqueeze(-1), 1).squeeze(1)
        best = (inside + noise).argmax(-1, keepdim=True)
        return index.gather(-1, best).squeeze(-1)

    def _below(self, x: Tensor, top: Tensor) -> Tensor:
        """Return `x - max x` in the widest float: 0 at an infinite maximum, -inf below it."""
        return (x.to(self._real) - top.to(self._real)).nan_to_num_(nan=0.0, neginf=-INF)

    def _column(self, metadata: SamplingMetadata, name: str, off: float, like: Tensor) -> Tensor:
        """Return a parameter of each row, [B, 1]; `off` if no row has it."""
        values = metadata.per_row(name)
        if values is None:
            values = torch.full((like.shape[0],), off, device=like.device)
        return (values.to(self._real) if values.is_floating_point() else values).unsqueeze(-1)


def _logprobs(
    x: Tensor, values: Tensor, hidden: Tensor, token: Tensor, metadata: SamplingMetadata
) -> LogprobsTensors:
    """Describe the drawn token and the N best.

    :param values: [B, V], what the mode shows.
    :param hidden: [B, V] bool: tokens that the mode ranks below all others.
    """
    token = token.unsqueeze(-1)
    width, values = metadata.facts.logprobs_width(x.shape[-1]) or 0, values.to(torch.float32)
    # Ranked by x: rounding may give two logits one log-probability. What is shown as -inf is ordered by id.
    best = best_token_ids(x.masked_fill(hidden | values.isneginf(), -INF), width)
    ids = torch.cat((token, best), -1)
    ids, values = pad_logprobs(ids, values.gather(-1, ids), metadata.per_row("logprobs"))
    return LogprobsTensors(ids, values, (x >= x.gather(-1, token)).sum(-1))
