"""Seeded verifications: the chain of (seed, position, logits, drafts), whatever the batch around it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tokendraw._exchange.capabilities import GumbelDtype
from tokendraw._exchange.params import SamplingParams
from tokendraw._messages.words import all_of
from tokendraw.testing import reference
from tokendraw.testing.kit.property import Ask, Properties
from tokendraw.testing.kit.trial import Trial
from tokendraw.testing.rows.expected import SAME
from tokendraw.testing.rows.requests import described, has_counter
from tokendraw.testing.verify.drafting import Batch, chains, ways
from tokendraw.testing.verify.verifying import Verifying, draft_ask

properties = Properties("verify")
Array = NDArray[Any]


@properties.advertised("verify seeded chains", has_counter, draft_ask(params=SamplingParams(seed=1)))
def seeded_chains(subject: Verifying, trial: Trial) -> str:
    """Chains equal the walk of the contract, token by token, 99.99 % of them and all that are no near tie."""
    return _equal_walk(subject, trial, "fp32")


@properties.advertised(
    "verify fp64 noise", lambda c: "fp64" in c.gumbel_dtypes, Ask({"gumbel_dtype": "fp64"})
)
def fp64_noise(subject: Verifying, trial: Trial) -> str:
    """Seeded chains equal those of the contract with 53-bit uniforms and float64 too."""
    if subject.capabilities.seeding != "counter":
        return "advertised without seeds: nothing to compare with"
    return _equal_walk(subject, trial, "fp64")


def _equal_walk(subject: Verifying, trial: Trial, dtype: GumbelDtype) -> str:
    judged = same = 0
    for size in (2, 31, 1025, 2100) if dtype == "fp32" else (1025,):
        if size > (subject.capabilities.max_vocab_size or size):
            continue
        batch = Batch.of(subject, trial.generator(f"{dtype} {size}"), subject.effort.rows(32, least=3), size)
        certain = [i for i in range(len(batch)) if batch.is_certain(subject, i)]
        for mode, kind in ways(subject.capabilities):
            found = chains(batch.verify(subject, mode, kind, gumbel_dtype=dtype))
            for i, tokens in [(i, found[i]) for i in certain]:
                expected = batch.walk(i, mode, kind, dtype)
                judged, same = judged + 1, same + int(tokens == expected.tokens)
                trial.require(
                    tokens == expected.tokens or expected.lead < reference.NEAR_TIE,
                    f"V = {size}, {mode}, {kind}, {described(batch.params[i])}, seed {batch.params[i].seed}, from "
                    f"position {batch.first[i]}, drafts {batch.ids[i]}: needs {expected.tokens}, found {tokens}",
                )
    trial.require(
        same >= SAME * judged - 1, f"{judged} chains need {SAME:.2%} of the reference's, found {same}"
    )
    return f"{judged} chains over mixed filters, {same} of them the reference's"


@properties.advertised("verify batch invariance", lambda c: c.batch_invariant, Ask({"batch_invariant": True}))
def batch_invariance(subject: Verifying, trial: Trial) -> str:
    """A seeded request gets the same chain alone, in any batch, in any place, and beside any mates."""
    if subject.capabilities.seeding != "counter":
        return "advertised without seeds: nothing to compare"
    count = subject.effort.rows(12, least=3)
    sizes = [n for n in (2, 9, 64) if n <= max(subject.effort.batch_sizes)]
    rng = trial.generator("rows")
    batch = Batch.of(subject, rng, count, 1100)
    for mode, kind in ways(subject.capabilities):
        alone = [chains(batch.picked([i]).verify(subject, mode, kind))[0] for i in range(count)]
        for rows in sizes:
            order = rng.permutation(rows) % count
            found = chains(batch.picked(order).verify(subject, mode, kind))
            apart = [place for place, i in enumerate(order) if found[place] != alone[i]]
            trial.require(
                not apart,
                f"{mode}, {kind}, B = {rows}: request {apart[0] if apart else 0} needs the chain that it gets alone, "
                f"{len(apart)} requests differ",
            )
    return f"{count} requests alone and in batches of {all_of(map(str, sizes))}"
