"""Samplers with a bug in every call: native with a change before or after it."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch

import tokendraw
import tokendraw_native.filters as native_filters
from mutants import Mutant, table
from mutants.corner_calls import INF, CornerCall
from mutants.corners import Corner, draw, given, ranks, threshold
from mutants.sample_corners import fixed, shared_noise
from tokendraw import SamplerOutput
from tokendraw.plugin import Capabilities
from tokendraw_native import plugin
from tokendraw_testing import Effort

NATIVE = plugin.tokendraw_describe().operations["sample"]
PLAIN = Capabilities(device_types=None)
NAN = float("nan")


@functools.cache
def native(need, device):
    return tokendraw.load_sampler("native", device=device, need=need)


class SamplerMutant:
    """The native sampler, with hooks for need, arguments and output."""

    def __init__(self, need, device):
        self.need, self.device = need, device

    def sample(self, logits, metadata):
        logits, metadata = self.change(logits, metadata)
        return self.output(native(self.other_need(self.need), self.device).sample(logits, metadata))

    def other_need(self, need):
        return need

    def change(self, logits, metadata):
        return logits, metadata

    def output(self, output):
        return output


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


def at_temperature(mode):
    """Replace ``mode`` of logprobs by logprobs after temperature."""

    def other_need(self, need):
        self.is_changed = need.logprobs_mode == mode
        return replace(need, logprobs_mode="temperature_logprobs") if self.is_changed else need

    return other_need


def two_sums(self, logits, metadata):
    output = SamplerMutant.sample(self, logits, metadata)
    if output.log_kept_mass is None:
        return output
    weights = torch.softmax(logits.float().nan_to_num(nan=-INF, posinf=80.0, neginf=-INF), -1)
    apart = (weights.flip(-1).cumsum(-1)[:, -1] / weights.sum(-1)).log().nan_to_num(0.0)
    return replace(output, log_kept_mass=output.log_kept_mass + apart)


def clamp_temperature(self, logits, metadata):
    metadata.temperature.clamp_(min=0.7)
    return logits, metadata


def read_padding(self, logits, metadata):
    rows, size = logits.shape
    if logits.stride(0) > size:
        behind = logits.as_strided((rows, 1), logits.stride(), logits.storage_offset() + size)
        logits = torch.where(behind > logits.amax(-1, keepdim=True), 0.0, logits)
    return logits, metadata


def without_xtc(self, logits, metadata):
    """Leave XTC out of calls that return no threshold."""
    return logits, metadata if self.need.threshold else replace(metadata, xtc_probability=None)


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


def in_every_call(name: str, line: str, **hooks: Any) -> Corner:
    """A bug in every draw of tokens of every dtype."""
    return draw(name, line, all_dtypes=True, **hooks)


def leak_nan(call: CornerCall) -> CornerCall:
    below = call.logits.isnan().any(-1).roll(1) & (call.row > 0)
    return call.with_logits(torch.where(below.unsqueeze(-1), NAN, call.logits))


def given_sorted(call, ids, values):
    order = torch.where(ids >= 0, ids, 1 << 40).argsort(dim=-1, stable=True)
    return ids.gather(-1, order), values.gather(-1, order)


def given_at_one(call, ids, values):
    """The values of a row at T = 1, in modes of another temperature."""
    safe = ids.clamp(min=0)
    at_one = call.logits.float().log_softmax(-1).gather(-1, safe)
    return ids, torch.where((ids >= 0) & (values > -INF), at_one, values)


def padding_as_id_0(call):
    ids = call.metadata.logprob_token_ids
    return (
        call
        if ids is None
        else call.with_fields(logprob_token_ids=torch.where((ids < 0) | (ids >= call.size), 0, ids))
    )


def moments(change):
    """Patch the moments of native: ``change(rows, found, inverse_temperature)`` returns fields to replace."""
    native_moments = native_filters.row_moments

    def row_moments(rows, weight, inverse_temperature, names, buffers):
        found = native_moments(rows, weight, inverse_temperature, tokendraw.plugin.MOMENTS, buffers)
        return replace(found, **change(rows, found, inverse_temperature.squeeze(-1)))

    return lambda call: mock.patch.object(native_filters, "row_moments", row_moments)


def floor_behind_top_k(call):
    """The moments of what top-k left."""
    native_floors = native_filters.floors

    def floors(rows, weight, params, buffers):
        if params.top_k is None:
            return native_floors(rows, weight, params, buffers)
        size = rows.x.shape[-1]
        k = torch.where((params.top_k > 0) & (params.top_k < size), params.top_k, size)
        kth = rows.x.sort(-1, descending=True)[0].gather(-1, k - 1)
        is_kept = rows.x >= kth
        return native_floors(replace(rows, x=rows.x.where(is_kept, -INF)), weight * is_kept, params, buffers)

    return mock.patch.object(native_filters, "floors", floors)


def lowest_floor(call):
    """Of several filters of a row the weakest counts."""
    combined_floor = native_filters.combined_floor

    def weakest(names, values, found):
        floors = [combined_floor([name], values[:, i : i + 1], found) for i, name in enumerate(names)]
        return functools.reduce(torch.minimum, [floor.where(floor > -INF, 0.0) for floor in floors])

    return mock.patch.object(native_filters, "combined_floor", weakest)


def without_the_largest(call):
    """Drop the largest token of a row with a filter from moments that keeps another one."""
    filters = call.metadata.filters_per_row()
    if filters is None:
        return call
    x = call.logits.float()
    is_largest = x == x.amax(-1, keepdim=True)
    drops = (filters[1] != 0).any(-1, keepdim=True) & ~(is_largest | (x == -INF)).all(-1, keepdim=True)
    return call.with_logits(call.logits.masked_fill(is_largest & drops, -INF))


def cut_mass(top_p, mass, params):
    """The mass of a row is cut to 2^14 before p multiplies it."""
    return top_p * (16_384 / mass).clamp(max=1.0)


def cut_in_joint_order(top_p, mass, params):
    return top_p if params.joint is None else torch.where(params.joint, cut_mass(top_p, mass, params), top_p)


def halved_in_flat_rows(top_p, mass, params):
    return torch.where((top_p <= 0.01) & (mass > 16_384), top_p / 2, top_p)


def in_nucleus(base, method, change, is_meant=lambda need: True):
    """Replace p in calls of a method, of some needs: ``change(top_p, mass, params)``, [rows, 1] each."""
    native_threshold = native_filters._top_p_threshold

    def threshold(rows, top_values, weight, before, ceiling, params, buffers):
        top_p = change(params.top_p, weight.sum(-1, keepdim=True), params)
        changed = replace(params, top_p=top_p)
        return native_threshold(rows, top_values, weight, before, ceiling, changed, buffers)

    def changed(self, *arguments, **options):
        patch = mock.patch.object(native_filters, "_top_p_threshold", threshold)
        with patch if is_meant(getattr(self, "need", None)) else nullcontext():
            return getattr(base, method)(self, *arguments, **options)

    return {method: changed}


FLAT_P = "p is halved where p <= 0.01 and the row is flat"
FLAT_MASS = "the mass of a flat row is cut to 16,384"


# fmt: off
SAMPLERS = (
    *table("sample", NATIVE, SamplerMutant, (
        (FLAT_P, "kept sets", in_nucleus(SamplerMutant, "sample", halved_in_flat_rows)),
        (f"{FLAT_P} and no threshold asked for", "kept sets", in_nucleus(
            SamplerMutant, "sample", halved_in_flat_rows, lambda need: not need.threshold)),
        (f"{FLAT_MASS} in the order joint", "kept sets", in_nucleus(SamplerMutant, "sample", cut_in_joint_order)),
    ), options=QUICK),
    *table("sample", NATIVE, SamplerMutant, (
        ("1 % of the tail dropped", "distribution", {"change": drop_tail}),
        ("XTC is off where nobody asks for thresholds", "further filters", {"change": without_xtc})), options=QUICK),
    in_every_call("one noise row shared by the batch", "independent draws", unseeded=True, change=shared_noise(1)),
    in_every_call("noise index wrapping at 2**15 rows", "independent draws", unseeded=True, change=shared_noise(2**15)),
    in_every_call("top-k off by one, upwards", "crossed requests", where=lambda call: call.top_k > 0,
                  change=lambda call: call.with_params(top_k=call.top_k + 1)),
    in_every_call("strict in place of inclusive top-p", "crossed requests",
                  where=lambda call: call.has_top_p & ~call.greedy, change=CornerCall.without_crossing),
    in_every_call("joint in place of sequential", "crossed requests", change=fixed(joint=True)),
    in_every_call("ties by index while declaring values", "crossed requests", change=CornerCall.exact_k),
    in_every_call("position ignored", "crossed requests",
                  change=lambda call: call.with_fields(positions=torch.zeros_like(call.metadata.positions))),
    in_every_call("the threshold lies between two logits", "crossed requests", output=threshold(
        lambda call, found: found.nextafter(torch.full_like(found, -INF)))),
    in_every_call("the threshold of greedy rows is -inf", "crossed requests", output=threshold(
        lambda call, found: torch.where(call.greedy, -INF, found))),
    in_every_call("given ids are sorted", "crossed logprobs", output=given(given_sorted)),
    in_every_call("given ids outside of the vocabulary count as id 0", "crossed logprobs", change=padding_as_id_0),
    in_every_call("given ids have raw logprobs in every mode", "crossed logprobs", output=given(given_at_one)),
    in_every_call("the deviation of a sample in place of the population", "further filters", patch=moments(
        lambda rows, found, _: {"std": found.std * (found.count / (found.count - 1)).sqrt()})),
    in_every_call("moments count logits of -inf", "further filters", patch=moments(
        lambda rows, found, _: {"std": found.std * (found.count / rows.x.shape[-1]).sqrt()})),
    in_every_call("entropy in bits", "further filters", patch=moments(
        lambda rows, found, _: {"entropy": found.entropy / math.log(2)})),
    in_every_call("the floor is that of what top-k left", "further filters", patch=floor_behind_top_k),
    in_every_call("the lowest of several floors counts", "further filters", patch=lowest_floor),
    in_every_call("a filter drops the largest token", "further filters", change=without_the_largest),
    in_every_call("argmax over a padded tile", "last ids", change=lambda call: call.with_logits(
        torch.nn.functional.pad(call.logits, (0, -call.size % 1024)))),
    in_every_call("NaN leaking to the next row", "far NaN and infinities", change=leak_nan),
    in_every_call("rank off by one", "crossed logprobs", output=ranks(lambda call, counts, ids: counts - 1)),
    *table("sample", NATIVE, SamplerMutant, (
        ("raw logprobs taken after temperature", "crossed logprobs", {"other_need": at_temperature("raw_logprobs")}),
        ("log_kept_mass above 0", "crossed logprobs", {"sample": two_sums}),
        ("input modified", "inputs unmodified",
         {"change": lambda self, logits, metadata: (
             logits.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF), metadata)}),
        ("request modified", "inputs unmodified", {"change": clamp_temperature}),
        ("padding read", "strides", {"change": read_padding}),
    ), options=QUICK),
    *table("sample", PLAIN, SamplerMutant, (("uniforms of 24 bits", "tails", {"sample": race_in_24_bits}),),
           options=QUICK | {"effort": EVERY_TAIL}),
    *table("sample", replace(NATIVE, threshold=False, seeding="none", logprobs_modes=(), logprob_token_ids=False),
           SamplerMutant, ((f"{FLAT_P}, of a sampler without seeds and thresholds", "kept sets", in_nucleus(
               SamplerMutant, "sample", halved_in_flat_rows)),), options={"quick": False}),
)
CUDA_SAMPLERS = table("sample", NATIVE, SamplerMutant, (("a hidden sync", "sync-free", {"change": wait}),),
                      options=QUICK, device="cuda")
# fmt: on
MUTANTS = {"Samplers": SAMPLERS, "Samplers on a CUDA device": CUDA_SAMPLERS}
