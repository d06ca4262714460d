"""Planners are negotiated like any provider: by proof, with native as the reserve, and by whole calls."""

import pytest
import torch

import tokendraw
from fake_dists import FakeDists, offering
from paged_kv_model import SENTINEL, ints, lists, model, sentinels, table_of
from tokendraw import PagedKVPlan, SamplerFallbackWarning

LENGTHS, TABLE = [5, 0, 33], table_of(3, 4)


def planner(plan: str = "return super().plan(seq_lens, *rest)") -> str:
    """Return the source of a plugin ``acme``: native's planner, except for the statements ``plan``."""
    backend = f"""
def build(device, need):
    from tokendraw_native.paged_kv import NativePlanner

    class Planner(NativePlanner):
        calls = 0

        def plan(self, seq_lens, *rest):
            self.calls += 1
            {plan}

    return Planner()
"""
    return offering("plan_paged_kv", "HostCapabilities(device_types=None)", backend)


def test_the_best_plans_and_native_is_the_reserve(dists: FakeDists) -> None:
    dists.add_plugin("acme", planner())
    found = tokendraw.load("plan_paged_kv", device="cpu")
    assert found.resolution.explain() == (
        "plan_paged_kv on cpu: acme\n  + acme: best available, priority 50\n  + native: available, priority 0"
    )
    need = tokendraw.plugin.HostNeed(sync_free=True, graph_safe=True)
    assert tokendraw.resolve(operation="plan_paged_kv", device="cpu", need=need).chosen == "native"


def test_native_takes_over_and_writes_all_that_the_failed_one_left(dists: FakeDists) -> None:
    """The failed planner got copies of the inputs, and had written to the caller's buffers and its own input."""
    spoils = f"seq_lens.fill_(3); rest[-1].page_indices.fill_({SENTINEL}); raise RuntimeError('no')"
    dists.add_plugin(
        "acme", planner(f"if self.calls > 1: {spoils}\n            return super().plan(seq_lens, *rest)")
    )
    found = tokendraw.load("plan_paged_kv", device="cpu")
    lengths, out = ints(LENGTHS, "cpu"), sentinels(3, 4, "cpu")
    with pytest.warns(SamplerFallbackWarning, match="'acme' failed: its call raised RuntimeError: no"):
        assert found.plan(lengths, ints(TABLE, "cpu"), 16, out=out) is out
    assert lists(out) == model(LENGTHS, TABLE, 16)
    assert (found.name, found.stats(), lengths.tolist()) == ("native", {"native": 3}, LENGTHS)


def test_buffers_made_in_inference_mode_are_written_outside_of_it() -> None:
    found = tokendraw.load("plan_paged_kv", "native", device="cpu")
    with torch.inference_mode():
        out = PagedKVPlan.empty(3, 4)
    found.plan(ints(LENGTHS, "cpu"), ints(TABLE, "cpu"), 16, out=out)
    assert lists(out) == model(LENGTHS, TABLE, 16)
