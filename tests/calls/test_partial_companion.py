"""Rows beyond an explicit choice go to the machine's preferred sampler where that serves all of them in a call."""

import logging
from dataclasses import replace

import torch

from calling import Recorded, loaded, pair, select
from fake_candidates import EVERYTHING as SERVING
from fake_dists import EVERYTHING, plugin
from tokendraw import SamplingMetadata, SamplingParams, load_sampler
from tokendraw.plugin import Capabilities

NO_MOMENTS = EVERYTHING.replace("row_moments=tokendraw.plugin.MOMENTS", "row_moments=()")
GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(top_k=2)
RARE = SamplingParams(filters={"p_less": 1.0})


def add(dists, *, build="return ArgmaxSampler()"):
    """Install ``fast``, which serves most rows, and ``own``, which serves few, in this order of preference."""
    few = NO_MOMENTS.replace("greedy=True", "greedy=False")
    dists.add_plugin("fast", plugin("fast", priority=90, capabilities=NO_MOMENTS, build=build))
    dists.add_plugin("own", plugin("own", priority=80, capabilities=few))


def rows_of(sampler, *params):
    """Draw a batch, and return the number of its rows by the sampler that drew them."""
    before = sampler.stats()
    metadata = SamplingMetadata.from_params(params)
    logits = torch.tensor([[0.0, 9.0, 1.0]]).expand(len(params), -1).contiguous()
    assert sampler.sample(logits, metadata).token_ids.tolist() == [1] * len(params)
    return {name: n for name, rows in sampler.stats().items() if (n := rows - before.get(name, 0))}


def test_rows_go_to_the_first_companion_that_serves_all_of_a_call(dists, caplog):
    caplog.set_level(logging.INFO, "tokendraw")
    add(dists)
    sampler = load_sampler("own", device="cpu")
    assert (sampler.resolution.partial_companion, sampler.resolution.companion) == ("fast", "native")
    assert rows_of(sampler, PLAIN, PLAIN, GREEDY) == {"own": 2, "fast": 1}
    assert rows_of(sampler, PLAIN, PLAIN, RARE) == {"own": 2, "native": 1}
    assert rows_of(sampler, PLAIN, PLAIN, PLAIN, RARE, GREEDY) == {"own": 3, "native": 2}
    assert rows_of(sampler, GREEDY) == {"fast": 1}
    assert "'own' cannot serve greedy rows: they go to 'fast'" in caplog.messages


def test_metadata_of_two_vocabularies_go_to_a_companion_that_serves_each():
    companion, partial = Recorded(2), Recorded(3)
    sampler = pair(Capabilities(), Recorded(1), companion)
    select(sampler, partial_companion=loaded("fast", partial, replace(SERVING, max_vocab_size=9)))
    metadata = SamplingMetadata.from_params([SamplingParams(), GREEDY] * 20)
    for size in (9, 10, 9):
        sampler.sample(torch.zeros(40, size), metadata)
    assert [logits.shape[1] for logits in partial.logits] == [9, 9]
    assert [logits.shape[1] for logits in companion.logits] == [10]


def test_the_reasons_name_both_companions(dists):
    add(dists)
    resolution = load_sampler("own", device="cpu").resolution
    reasons = {decision.name: decision.reason for decision in resolution.decisions}
    assert reasons["fast"] == (
        "available, priority 90; serves the rows that own cannot, where it can serve all of them in a call"
    )
    assert reasons["native"].endswith("; serves the rows that own cannot")
    assert "): go to fast, or else to native\n" in resolution.explain()


def test_without_companions_neither_is_built(dists):
    add(dists, build="raise RuntimeError('built')")
    sampler = load_sampler("own", device="cpu", companion=False)
    assert (sampler.resolution.partial_companion, sampler.resolution.companion) == (None, None)


def test_one_that_cannot_be_built_is_left_out(dists):
    add(dists, build="raise RuntimeError('no kernels')")
    sampler = load_sampler("own", device="cpu")
    assert (sampler.resolution.partial_companion, sampler.resolution.companion) == (None, "native")
    assert rows_of(sampler, PLAIN, GREEDY) == {"own": 1, "native": 1}


def test_a_default_choice_has_none(dists):
    """What ranks behind the default choice may be slow to build, and serves hardly a row."""
    add(dists)
    sampler = load_sampler(device="cpu")
    assert (sampler.name, sampler.resolution.partial_companion) == ("fast", None)
    assert sampler.resolution.companion == "native"
