"""Samplers with a bug in every call: native with a change before or after it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import tokendraw
from mutants import Mutant, table
from tokendraw import SamplerOutput
from tokendraw.plugin import Capabilities
from tokendraw_native import plugin
from tokendraw_testing import Effort
from tokendraw_testing.rows.expected import expect

NATIVE = plugin.tokendraw_describe().operations["sample"]
PLAIN = Capabilities(device_types=None)
NAN, INF = float("nan"), float("inf")
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "joint", "logprobs")


@functools.cache
def native(need, device):
    return tokendraw.load_sampler("native", device=device, need=need)


class SamplerMutant:
    """The native sampler, with hooks for need, arguments and output."""

    def __init__(self, need, device):
        self.need, self.device = need, device

    def sample(self, logits, metadata, **shard):
        logits, metadata = self.change(logits, metadata)
        return self.output(native(self.other_need(self.need), self.device).sample(logits, metadata, **shard))

    def other_need(self, need):
        return need

    def change(self, logits, metadata):
        return logits, metadata

    def output(self, output):
        return output


def spread(metadata, **changes):
    """Return the metadata with a slot for each row."""
    columns = {name: metadata.per_row(name) for name in COLUMNS}
    return replace(metadata, **(columns | {"row_index": None} | changes))


def reseeded(source):
    """Give a row without a seed the fresh seed of row ``source(rows)``."""

    def change(self, logits, metadata):
        device, rows = metadata.temperature.device, len(logits)
        fresh = torch.empty(rows, dtype=torch.int64, device=device).random_(-(2**63), None)
        fresh = fresh[source(torch.arange(rows, device=device))]
        if metadata.seed is not None:
            fresh = torch.where(metadata.per_row("seeded"), metadata.per_row("seed"), fresh)
        positions = metadata.positions
        if positions is None:
            positions = torch.zeros(rows, dtype=torch.int64, device=device)
        return logits, spread(metadata, seed=fresh, seeded=None, positions=positions)

    return change


def drop_tail(self, logits, metadata):
    temperature = metadata.per_row("temperature").clamp(min=1e-3).unsqueeze(-1)
    mass = torch.softmax(logits.double() / temperature, -1)
    ascending, order = mass.sort(-1)
    dropped = torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, order, ascending.cumsum(-1) < 0.0101)
    return logits.masked_fill(dropped, -INF), metadata


def race_in_24_bits(self, logits, metadata):
    """Run a Gumbel race of all tokens over float32 uniforms of 24 bits.

    The best of n equal tokens has the largest of n such uniforms, which rounds like the largest of n exact ones. So the
    race of a row costs one uniform for each distinct logit, and a tail of 262,144 equal ones no more than any other.
    """
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
    """Return the distinct logits of a row: distance from the largest, counts, first members, and all ids in order."""
    x = np.nan_to_num(np.frombuffer(row, np.float32).astype(np.float64), nan=-INF, posinf=INF, neginf=-INF)
    values, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    y = values - values[-1] if np.isfinite(values[-1]) else np.where(values == values[-1], 0.0, -INF)
    return y, counts, np.cumsum(counts) - counts, np.argsort(group, kind="stable")


def top_k_plus(step):
    def change(self, logits, metadata):
        k = metadata.top_k
        facts = replace(metadata.facts, max_top_k=None, all_top_k=False)
        return logits, replace(metadata, top_k=torch.where(k > max(-step, 0), k + step, k), facts=facts)

    return change


@functools.lru_cache(256)
def _expect(row, params):
    return expect(np.frombuffer(row, np.float32), params)


def drop_crossing(self, logits, metadata):
    """Drop the token at the crossing of p."""

    def row(x, p):
        if p >= 1:
            return x
        expected = _expect(x.float().cpu().numpy().tobytes(), tokendraw.SamplingParams(top_p=p))
        dropped = ~expected.kept | (expected.edge if expected.count > 1 else np.zeros_like(expected.edge))
        return x.masked_fill(torch.from_numpy(dropped).to(x.device) & ~x.isnan(), -INF)

    masked = [row(x, float(p)) for x, p in zip(logits, metadata.per_row("top_p"), strict=True)]
    return torch.stack(masked) if masked else logits, replace(metadata, top_p=None)


def always_joint(self, logits, metadata):
    joint = torch.ones_like(metadata.temperature, dtype=torch.bool)
    return logits, replace(metadata, joint=joint, facts=replace(metadata.facts, any_joint=True))


def exact_k(self, logits, metadata):
    k = metadata.per_row("top_k").unsqueeze(-1)
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    columns = torch.arange(logits.shape[1], device=k.device).expand_as(order)
    place = torch.empty_like(order).scatter_(-1, order, columns)
    return logits.masked_fill((place >= k) & (k > 0), -INF), metadata


def first_seed_only(self, logits, metadata):
    if metadata.seed is None:
        return logits, metadata
    seeded = metadata.per_row("seeded") & (torch.arange(len(logits), device=logits.device) == 0)
    return logits, spread(metadata, seeded=seeded, facts=replace(metadata.facts, all_seeded=False))


def position_zero(self, logits, metadata):
    if metadata.positions is None:
        return logits, metadata
    return logits, replace(metadata, positions=torch.zeros_like(metadata.positions))


def pad_tile(self, logits, metadata):
    return torch.nn.functional.pad(logits, (0, -logits.shape[1] % 1024)), metadata


def leak_nan(self, logits, metadata):
    below = logits.isnan().any(-1).roll(1)
    if len(logits):
        below[0] = False
    return torch.where(below.unsqueeze(-1), NAN, logits), metadata


def at_temperature(mode):
    """Replace ``mode`` of logprobs by logprobs after temperature."""

    def other_need(self, need):
        self.is_changed = need.logprobs_mode == mode
        return replace(need, logprobs_mode="temperature_logprobs") if self.is_changed else need

    return other_need


def ranks_from_zero(self, output):
    if output.logprobs is None:
        return output
    return replace(output, logprobs=replace(output.logprobs, ranks=output.logprobs.ranks - 1))


def less_rounded_share(self, output):
    if output.logprobs is None or not self.is_changed:
        return output
    shift = output.log_kept_mass.exp().log().unsqueeze(-1)
    return replace(output, logprobs=replace(output.logprobs, logprobs=output.logprobs.logprobs - shift))


def two_sums(self, logits, metadata, **shard):
    output = SamplerMutant.sample(self, logits, metadata, **shard)
    if output.log_kept_mass is None:
        return output
    weights = torch.softmax(logits.float().nan_to_num(nan=-INF, posinf=80.0, neginf=-INF), -1)
    apart = (weights.flip(-1).cumsum(-1)[:, -1] / weights.sum(-1)).log().nan_to_num(0.0)
    return replace(output, log_kept_mass=output.log_kept_mass + apart)


def replace_nan(self, logits, metadata):
    return logits.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF), metadata


def clamp_temperature(self, logits, metadata):
    metadata.temperature.clamp_(min=0.7)
    return logits, metadata


def read_padding(self, logits, metadata):
    rows, size = logits.shape
    if logits.stride(0) > size:
        behind = logits.as_strided((rows, 1), logits.stride(), logits.storage_offset() + size)
        logits = torch.where(behind > logits.amax(-1, keepdim=True), 0.0, logits)
    return logits, metadata


def wait(self, logits, metadata):
    bool(logits[:1, :1].isnan().any())
    return logits, metadata


def sampler_mutant(sampler: type, *lines: str, capabilities: Any = NATIVE, **options: Any) -> Mutant:
    """Return a sampler class of a test as a mutant."""
    (mutant,) = table(
        "sample", capabilities, sampler, ((sampler.__name__, lines, {}),), options={"quick": True} | options
    )
    return mutant


QUICK = {"quick": True}
_EFFORT = Effort.of(quick=True, device_type="cpu")
EVERY_TAIL = replace(_EFFORT, tails=Effort.of(quick=True, device_type="cuda").tails, elements=1 << 26)
"""For a sampler that is cheap enough for every gap, in calls of many rows."""
# fmt: off
SAMPLERS = (
    *table("sample", NATIVE, SamplerMutant, (
        ("1 % of the tail dropped", "distribution", {"change": drop_tail}),
        ("one noise row shared by the batch", "rows of a batch", {"change": reseeded(lambda rows: rows * 0)}),
        ("noise index wrapping at 2**15 rows", "rows of a batch", {"change": reseeded(lambda rows: rows % 2**15)}),
        ("top-k off by one, upwards", "top_k", {"change": top_k_plus(1)}),
        ("top-k off by one, downwards", "top_k", {"change": top_k_plus(-1)}),
        ("strict in place of inclusive top-p", "top_p", {"change": drop_crossing}),
        ("joint in place of sequential", "filter order top_k_first", {"change": always_joint}),
        ("ties by index while declaring values", "ties", {"change": exact_k}),
        ("seed ignored after row 0", "seeded draws", {"change": first_seed_only}),
        ("position ignored", "neighbouring positions", {"change": position_zero}),
        ("argmax over a padded tile", "range and support", {"change": pad_tile}),
        ("NaN leaking to the next row", "neighbours of poisoned rows", {"change": leak_nan}),
        ("raw logprobs taken after temperature", "raw_logprobs", {"other_need": at_temperature("raw_logprobs")}),
        ("rank off by one", "ranks", {"output": ranks_from_zero}),
        ("processed logprobs above 0", "logprob bounds",
         {"other_need": at_temperature("processed_logprobs"), "output": less_rounded_share}),
        ("log_kept_mass above 0", "logprob bounds", {"sample": two_sums}),
        ("input modified", "inputs unmodified", {"change": replace_nan}),
        ("request modified", "inputs unmodified", {"change": clamp_temperature}),
        ("padding read", "padding is never read", {"change": read_padding}),
    ), options=QUICK),
    *table("sample", PLAIN, SamplerMutant, (("uniforms of 24 bits", "tails", {"sample": race_in_24_bits}),),
           options=QUICK | {"effort": EVERY_TAIL}),
)
CUDA_SAMPLERS = table("sample", NATIVE, SamplerMutant, (("a hidden sync", "sync-free", {"change": wait}),),
                      options=QUICK, device="cuda")
# fmt: on
MUTANTS = {"Samplers": SAMPLERS, "Samplers on a CUDA device": CUDA_SAMPLERS}
