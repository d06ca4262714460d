"""Samplers with one bug each, all but one of them a few lines around the native sampler."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch

import tokendraw
from tokendraw import SamplerOutput
from tokendraw_native import plugin
from tokendraw_testing import Subject
from tokendraw_testing.rows.expectation import expect

NATIVE = plugin.tokendraw_describe().operations["sample"]
NAN, INF = float("nan"), float("inf")


@functools.cache
def native(need, device):
    return tokendraw.load_sampler("native", device=device, need=need)


class Honest:
    """The native sampler with places to go wrong in."""

    def __init__(self, need, device):
        self.need, self.device = need, device

    def sample(self, logits, metadata, **shard):
        self.spoil(logits)
        logits, metadata = self.change(logits, metadata)
        output = native(self.told(self.need), self.device).sample(logits, metadata, **shard)
        return self.shown(output)

    def told(self, need):
        return need

    def spoil(self, logits):
        pass

    def change(self, logits, metadata):
        return logits, metadata

    def shown(self, output):
        return output


def reseeded(metadata, rows, pattern):
    """The metadata with the seeds of unseeded rows replaced by what ``pattern`` makes of one fresh seed a row."""
    device = metadata.temperature.device
    fresh = pattern(torch.empty(rows, dtype=torch.int64, device=device).random_(-(2**63), None))
    if metadata.seed is not None:
        fresh = torch.where(metadata.per_row("seeded"), metadata.per_row("seed"), fresh)
    positions = metadata.positions
    if positions is None:
        positions = torch.zeros(rows, dtype=torch.int64, device=device)
    return spread(metadata, seed=fresh, seeded=None, positions=positions)


def spread(metadata, **changes):
    """The metadata with one slot a row."""
    fields = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "joint", "logprobs")
    return replace(metadata, **({f: metadata.per_row(f) for f in fields} | {"row_index": None} | changes))


class TailDropped(Honest):
    """The least likely tokens that carry one per cent of the mass are never drawn."""

    def change(self, logits, metadata):
        x = logits.double()
        mass = torch.softmax(x / metadata.per_row("temperature").clamp(min=1e-3).unsqueeze(-1), -1)
        ascending, order = mass.sort(-1)
        dropped = torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, order, ascending.cumsum(-1) < 0.0101)
        return logits.masked_fill(dropped, -INF), metadata


class OneNoiseRow(Honest):
    """All rows of a batch that have no seed share their noise."""

    def change(self, logits, metadata):
        rows = len(logits)
        return logits, reseeded(metadata, rows, lambda seeds: seeds[:1].expand(rows).clone())


class NoiseIndexWraps(Honest):
    """The index of a row's noise is kept in 15 bits."""

    def change(self, logits, metadata):
        index = torch.arange(len(logits), device=logits.device) % 2**15
        return logits, reseeded(metadata, len(logits), lambda seeds: seeds[index])


class Uniforms24Bits(Honest):
    """A Gumbel race of all tokens over float32 uniforms of 24 bits.

    The best of n equal tokens has the largest of n such uniforms, which rounds like the largest of n exact ones. So the
    race of a row costs one uniform for each distinct logit, and a tail of 262,144 equal ones no more than any other.
    """

    def sample(self, logits, metadata):
        rng = np.random.default_rng(int(torch.randint(2**31, (1,))))
        alike = logits.stride(0) == 0
        temperature = metadata.per_row("temperature").cpu().numpy()
        tokens = np.zeros(len(logits), np.int64)
        for i, row in enumerate((logits[:1] if alike else logits).float().cpu().numpy()):
            rows = np.arange(len(logits)) if alike else np.array([i])
            y, counts, first, members = _groups(row.tobytes())
            rounded = (np.floor(rng.random((len(rows), len(y))) ** (1 / counts) * 2**24) + 0.5) / 2**24
            best = (y / temperature[rows, None] - np.log(-np.log(rounded))).argmax(1)
            tokens[rows] = members[first[best] + rng.integers(0, counts[best])]
        valid = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return SamplerOutput(torch.from_numpy(tokens).to(logits.device), valid)


@functools.lru_cache(64)
def _groups(row):
    """Distinct logits of a row: distance from the largest, how many have each, and their ids in one list."""
    x = np.nan_to_num(np.frombuffer(row, np.float32).astype(np.float64), nan=-INF, posinf=INF, neginf=-INF)
    values, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    y = values - values[-1] if np.isfinite(values[-1]) else np.where(values == values[-1], 0.0, -INF)
    return y, counts, np.cumsum(counts) - counts, np.argsort(group, kind="stable")


def any_k(metadata):
    """What is known of a batch whose top-k is about to be changed."""
    return replace(metadata.facts, max_top_k=None, all_top_k=False)


class TopKPlusOne(Honest):
    """top-k keeps one token too many."""

    def change(self, logits, metadata):
        k = metadata.top_k
        return logits, replace(metadata, top_k=torch.where(k > 0, k + 1, k), facts=any_k(metadata))


class TopKMinusOne(Honest):
    """top-k keeps one token too few."""

    def change(self, logits, metadata):
        k = metadata.top_k
        return logits, replace(metadata, top_k=torch.where(k > 1, k - 1, k), facts=any_k(metadata))


class StrictTopP(Honest):
    """top-p drops the token that crosses p."""

    def change(self, logits, metadata):
        p = metadata.per_row("top_p")
        masked = [self.row(x, float(q)) for x, q in zip(logits, p, strict=True)]
        return torch.stack(masked) if masked else logits, replace(metadata, top_p=None)

    def row(self, x, p):
        if p >= 1:
            return x
        params = tokendraw.SamplingParams(top_p=p)
        expected = _expect(x.float().cpu().numpy().tobytes(), params)
        crossing = torch.from_numpy(expected.edge if expected.count > 1 else np.zeros_like(expected.edge))
        dropped = torch.from_numpy(~expected.kept) | crossing
        return x.masked_fill(dropped.to(x.device) & ~x.isnan(), -INF)


@functools.lru_cache(256)
def _expect(row, params):
    return expect(np.frombuffer(row, np.float32), params)


class JointForSequential(Honest):
    """top-p counts the whole mass, whatever the order that was asked for."""

    def change(self, logits, metadata):
        joint = torch.ones_like(metadata.temperature, dtype=torch.bool)
        return logits, replace(metadata, joint=joint, facts=replace(metadata.facts, any_joint=True))


class TiesByIndex(Honest):
    """top-k keeps exactly k tokens, the first of those that tie."""

    def change(self, logits, metadata):
        k = metadata.per_row("top_k").unsqueeze(-1)
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        place = torch.empty_like(order).scatter_(
            -1, order, torch.arange(logits.shape[1], device=k.device).expand_as(order)
        )
        return logits.masked_fill((place >= k) & (k > 0), -INF), metadata


class SeedOfTheFirstRow(Honest):
    """Seeds are ignored after row 0."""

    def change(self, logits, metadata):
        if metadata.seed is None:
            return logits, metadata
        seeded = metadata.per_row("seeded") & (torch.arange(len(logits), device=logits.device) == 0)
        return logits, spread(metadata, seeded=seeded, facts=replace(metadata.facts, all_seeded=False))


class PositionIgnored(Honest):
    """Every position has the noise of position 0."""

    def change(self, logits, metadata):
        if metadata.positions is None:
            return logits, metadata
        return logits, replace(metadata, positions=torch.zeros_like(metadata.positions))


class PaddedTile(Honest):
    """The last tile is filled up with zeros, which beat negative logits."""

    def change(self, logits, metadata):
        return torch.nn.functional.pad(logits, (0, -logits.shape[1] % 1024)), metadata


class LeakingNaN(Honest):
    """A NaN spreads to the row below."""

    def change(self, logits, metadata):
        below = logits.isnan().any(-1).roll(1)
        if len(logits):
            below[0] = False
        return torch.where(below.unsqueeze(-1), NAN, logits), metadata


class RawAfterTemperature(Honest):
    """raw_logprobs are taken after temperature."""

    def told(self, need):
        return (
            replace(need, logprobs_mode="temperature_logprobs")
            if need.logprobs_mode == "raw_logprobs"
            else need
        )


class RankFromZero(Honest):
    """Ranks are counted from 0."""

    def shown(self, output):
        if output.logprobs is None:
            return output
        return replace(output, logprobs=replace(output.logprobs, ranks=output.logprobs.ranks - 1))


class ShareRoundedBeforeItsLogarithm(Honest):
    """processed_logprobs are temperature_logprobs less the logarithm of a share that was rounded to float32."""

    def told(self, need):
        self.is_processed = need.logprobs_mode == "processed_logprobs"
        return replace(need, logprobs_mode="temperature_logprobs") if self.is_processed else need

    def shown(self, output):
        if output.logprobs is None or not self.is_processed:
            return output
        shift = output.log_kept_mass.exp().log().unsqueeze(-1)
        return replace(output, logprobs=replace(output.logprobs, logprobs=output.logprobs.logprobs - shift))


class KeptMassOfAnotherSum(Honest):
    """The kept and the whole mass are summed up in float32 in different orders."""

    def sample(self, logits, metadata, **shard):
        output = super().sample(logits, metadata, **shard)
        if output.log_kept_mass is None:
            return output
        weights = torch.softmax(logits.float().nan_to_num(nan=-INF, posinf=80.0, neginf=-INF), -1)
        apart = (weights.flip(-1).cumsum(-1)[:, -1] / weights.sum(-1)).log().nan_to_num(0.0)
        return replace(output, log_kept_mass=output.log_kept_mass + apart)


class InputModified(Honest):
    """NaN are replaced in the caller's own logits."""

    def spoil(self, logits):
        logits.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)


class RequestModified(Honest):
    """Temperatures are clamped in the caller's own tensor."""

    def change(self, logits, metadata):
        metadata.temperature.clamp_(min=0.7)
        return logits, metadata


class PaddingRead(Honest):
    """The element behind each row takes part in its maximum."""

    def change(self, logits, metadata):
        rows, size = logits.shape
        if logits.stride(0) > size:
            behind = logits.as_strided((rows, 1), logits.stride(), logits.storage_offset() + size)
            logits = torch.where(behind > logits.amax(-1, keepdim=True), 0.0, logits)
        return logits, metadata


class HiddenSync(Honest):
    """Each call looks at a value on the device."""

    def change(self, logits, metadata):
        bool(logits[:1, :1].isnan().any())
        return logits, metadata


PLAIN = tokendraw.plugin.Capabilities(device_types=None)


@dataclass(frozen=True)
class Planted:
    """A bug, the line that it has to turn red, and what its sampler advertises."""

    sampler: type[Honest]
    line: str
    capabilities: tokendraw.plugin.Capabilities = NATIVE


PLANTED = {
    "1 % of the tail dropped": Planted(TailDropped, "distribution"),
    "one noise row shared by the batch": Planted(OneNoiseRow, "rows of a batch"),
    "noise index wrapping at 2**15 rows": Planted(NoiseIndexWraps, "rows of a batch"),
    "uniforms of 24 bits": Planted(Uniforms24Bits, "tails", PLAIN),
    "top-k off by one, upwards": Planted(TopKPlusOne, "top_k"),
    "top-k off by one, downwards": Planted(TopKMinusOne, "top_k"),
    "strict in place of inclusive top-p": Planted(StrictTopP, "top_p"),
    "joint in place of sequential": Planted(JointForSequential, "filter order top_k_first"),
    "ties by index while declaring values": Planted(TiesByIndex, "ties"),
    "seed ignored after row 0": Planted(SeedOfTheFirstRow, "seeded draws"),
    "position ignored": Planted(PositionIgnored, "neighbouring positions"),
    "argmax over a padded tile": Planted(PaddedTile, "range and support"),
    "NaN leaking to the next row": Planted(LeakingNaN, "neighbours of poisoned rows"),
    "raw logprobs taken after temperature": Planted(RawAfterTemperature, "raw_logprobs"),
    "rank off by one": Planted(RankFromZero, "ranks"),
    "processed logprobs above 0": Planted(ShareRoundedBeforeItsLogarithm, "logprob bounds"),
    "log_kept_mass above 0": Planted(KeptMassOfAnotherSum, "logprob bounds"),
    "input modified": Planted(InputModified, "inputs unmodified"),
    "request modified": Planted(RequestModified, "inputs unmodified"),
    "padding read": Planted(PaddingRead, "padding is never read"),
}
NEEDS_CUDA = {"a hidden sync": Planted(HiddenSync, "sync-free")}


def subject(planted, device="cpu", seed=0, quick=True):
    """The sampler with the bug, as the kit takes it."""
    return Subject(
        planted.sampler.__name__,
        capabilities={"sample": planted.capabilities},
        device=device,
        build=lambda operation, need: planted.sampler(need, device),
        quick=quick,
        seed=seed,
    )
