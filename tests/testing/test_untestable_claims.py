"""Lines without anything to test are not run, with a reason; claims are tested without seeds where possible."""

from dataclasses import replace

import pytest
import torch

from mutants.samplers import NATIVE, SamplerMutant, sampler_mutant
from numpy_sampler import modest
from tokendraw.plugin import Capabilities
from tokendraw_testing import Effort, Property, Status, Subject, run
from tokendraw_testing.kit import run as running
from tokendraw_testing.kit.property import OperationKit
from tokendraw_testing.subjects import SampleSubject

TINY = Effort.tiny()
FEW = replace(Effort.of(quick=True, device_type="cpu"), draws=2000, tiled_draws=400)
UNSEEDED = replace(NATIVE, seeding="launch")
DENSE = {"verify_modes": ("rejection",), "draft_kinds": ("probs",)}


def line(subject, name):
    (result,) = run(subject, only=name).lines
    return result


def planted(sampler, name, capabilities):
    (result,) = sampler_mutant(sampler, capabilities=capabilities).look(name, effort=FEW)
    return result


@pytest.mark.parametrize(
    ("name", "promises", "reason"),
    [
        ("threads", {}, "needs compiled kernels, found an effort for interpreted ones"),
        (
            "noise of distant rows",
            {"max_vocab_size": 20},
            "needs a vocabulary in which few rows draw the same token, found a limit of 20",
        ),
        ("far NaN and infinities", {"max_vocab_size": 20}, "needs a vocabulary of 64, found a limit of 20"),
        ("near ties", {"max_vocab_size": 15}, "needs a vocabulary of 16, found a limit of 15"),
        ("verify crossing, wide", {}, "needs a vocabulary above 65,536, found an effort without one"),
        (
            "verify crossing, wide",
            {"max_vocab_size": 2000},
            "needs a vocabulary above 65,536, found a limit of 2,000",
        ),
        (
            "verify near distributions",
            {"max_vocab_size": 1000},
            "needs a vocabulary of 1,025, found a limit of 1000",
        ),
        ("verify shared noise", {"max_vocab_size": 200}, "needs a vocabulary of 257, found a limit of 200"),
        ("verify unseeded acceptance", {"max_vocab_size": 3}, "needs a vocabulary of 4, found a limit of 3"),
    ],
)
def test_a_line_that_finds_nothing_to_look_at_is_not_run(name, promises, reason):
    result = line(modest(TINY, verify=DENSE, **promises), name)
    assert (result.status, result.detail) == (Status.NOT_RUN, reason)


def test_a_line_without_a_call_is_not_run(monkeypatch):
    idle = Property(name="idle", about="Nothing.", check=lambda subject, trial: "0 rows", operation="sample")
    monkeypatch.setattr(running, "find", lambda name: OperationKit(view=SampleSubject, properties=(idle,)))
    result = running.check(modest(TINY), idle)
    assert result is not None
    assert (result.status, result.detail) == (Status.NOT_RUN, "needs a call to look at, found none: 0 rows")


# Batch invariance without seeds


class SecondInLargeBatches(SamplerMutant):
    """In more than 60 rows the largest token is passed over."""

    def change(self, logits, metadata):
        if len(logits) > 60:
            logits = logits.scatter(1, logits.argmax(1, keepdim=True), -torch.inf)
        return logits, metadata


class RoundsInLargeBatches(SamplerMutant):
    """In more than 60 rows the logprobs are rounded to bfloat16."""

    def output(self, output):
        if output.logprobs is None or len(output.token_ids) <= 60:
            return output
        values = output.logprobs.logprobs.bfloat16().float()
        return replace(output, logprobs=replace(output.logprobs, logprobs=values))


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.slow
def test_batch_invariance_without_seeds_is_seen_in_rows_that_no_noise_decides(greedy):
    offered = replace(UNSEEDED, greedy=greedy)
    assert planted(SamplerMutant, "batch invariance", offered).detail == (
        "requests alone and in batches of up to 1000"
    )
    result = planted(SecondInLargeBatches, "batch invariance", offered)
    assert result.status is Status.FAILED
    assert ": token of row " in result.detail
    assert planted(RoundsInLargeBatches, "batch invariance", offered).status is Status.FAILED


def test_batch_invariance_needs_neither_greedy_rows_nor_logprobs():
    offered = Capabilities(batch_invariant=True)
    assert planted(SamplerMutant, "batch invariance", offered).status is Status.PASSED
    assert planted(SecondInLargeBatches, "batch invariance", offered).status is Status.FAILED


@pytest.mark.parametrize("greedy", [True, False])
def test_batch_invariance_of_verifications_without_seeds_is_seen(greedy):
    promises = {"seeding": "launch", "greedy": greedy}
    subject = modest(TINY, verify=DENSE, **promises)
    assert line(subject, "verify batch invariance").detail == "requests alone and in batches of up to 9"
    inner = subject.built("verify")

    class Wrong:
        sample = inner.sample

        def verify(self, target_logits, drafts, metadata, *, mode):
            if drafts.num_requests > 5:
                target_logits = target_logits.scatter(1, target_logits.argmax(1, keepdim=True), -torch.inf)
            return inner.verify(target_logits, drafts, metadata, mode=mode)

    wrong = Subject(
        "wrong",
        capabilities=subject.capabilities,
        device="cpu",
        build=lambda operation, need: Wrong(),
        effort=TINY,
    )
    assert line(wrong, "verify batch invariance").status is Status.FAILED


# fp64 noise without seeds


class OffInFloat64(SamplerMutant):
    """Built for float64 noise, the sampler draws at half the temperature."""

    def change(self, logits, metadata):
        return (logits * 2 if self.need.gumbel_dtype == "fp64" else logits), metadata


def test_the_second_noise_precision_without_seeds_is_judged_by_its_distribution():
    result = planted(SamplerMutant, "noise precision", UNSEEDED)
    assert (result.status, result.detail) == (
        Status.PASSED,
        "fp64, distribution of 6 rows; without seeds nothing tells float64 noise from float32",
    )
    assert result.checks == 6
    assert planted(OffInFloat64, "noise precision", UNSEEDED).status is Status.FAILED
    assert planted(OffInFloat64, "distribution", UNSEEDED).status is Status.PASSED


def test_the_second_noise_precision_of_verifications_without_seeds_is_judged_by_its_distribution():
    result = line(modest(TINY, verify=DENSE, seeding="launch"), "verify noise precision")
    assert (result.status, result.detail) == (
        Status.PASSED,
        "fp64, distribution; without seeds nothing tells float64 noise from float32",
    )
    assert result.checks > 0


# Lines that looked at a part of what they name


class OneBestTooFar(SamplerMutant):
    """The best token is left out of the N best."""

    def output(self, output):
        best = output.logprobs
        if best is None or best.token_ids.shape[1] < 3:
            return output
        ids, values = best.token_ids.clone(), best.logprobs.clone()
        ids[:, 1:-1], values[:, 1:-1] = best.token_ids[:, 2:], best.logprobs[:, 2:]
        return replace(output, logprobs=replace(best, token_ids=ids, logprobs=values))


@pytest.mark.parametrize("mode", ["processed_logprobs", "temperature_logprobs"])
def test_the_order_of_the_best_is_seen_without_raw_logprobs(mode):
    offered = replace(NATIVE, logprobs_modes=(mode,))
    effort = replace(FEW, crossed_sizes=(33,), crossed_rows=8)
    honest, wrong = (
        sampler_mutant(sampler, capabilities=offered).look("crossed logprobs", effort=effort)[0]
        for sampler in (SamplerMutant, OneBestTooFar)
    )
    assert (honest.status, wrong.status) == (Status.PASSED, Status.FAILED)
