"""What the kit judges by: statistics with a second look, and a stopwatch behind a busy device; all seeds are fixed."""

import numpy as np
import pytest
import torch

from tokendraw import SamplingParams
from tokendraw_testing import kept_sets
from tokendraw_testing.kit import device
from tokendraw_testing.kit.device import LONGEST_CALL_SECONDS, seconds_behind_a_busy_device
from tokendraw_testing.kit.statistical_tests import coincidences, fit, independence, pool_tokens, two_sided
from tokendraw_testing.kit.trial import FALSE_ALARM, Trial, Verdict, Violation
from tokendraw_testing.statistics.verify import bins_of_residuals


def verdicts(*p_values):
    """Make an experiment with given p-values in turn, and the list of requested draws."""
    requested, left = [], list(p_values)

    def experiment(rng, draws):
        requested.append((draws, int(rng.integers(2**32))))
        return Verdict(left.pop(0), "token 3 drawn 5 times, expected 9.0", draws)

    return experiment, requested


def test_a_run_calls_a_correct_sampler_wrong_at_most_once_in_a_million():
    assert pytest.approx(1e-6) == FALSE_ALARM


def test_a_suspicious_look_is_repeated_with_fresh_seeds_and_four_times_the_draws():
    trial, (experiment, requested) = Trial("p", 0), verdicts(9e-4, 1e-6)
    trial.judge("label", experiment, 100)
    assert [draws for draws, _ in requested] == [100, 400]
    assert requested[0][1] != requested[1][1]
    assert (trial.checks, trial.draws) == (1, 500)


def test_two_bad_looks_are_a_violation_with_all_figures():
    trial, (experiment, _) = Trial("p", 0), verdicts(9e-4, 9e-7)
    with pytest.raises(Violation) as violation:
        trial.judge("label", experiment, 100)
    assert str(violation.value) == (
        "label: token 3 drawn 5 times, expected 9.0 (p = 9.0e-04, then 9.0e-07 in 400 draws)"
    )


def test_the_random_numbers_of_a_check_depend_on_run_property_and_label_alone():
    def number(name, seed, label, look=1):
        return int(Trial(name, seed).generator(label, look).integers(2**62))

    same = number("p", 0, "label")
    assert same == number("p", 0, "label")
    others = [
        number("q", 0, "label"),
        number("p", 1, "label"),
        number("p", 0, "other"),
        number("p", 0, "label", 2),
    ]
    assert len({same, *others}) == 5


RNG = np.random.default_rng(1)
PROBABILITIES = RNG.dirichlet(np.full(60, 0.4))


def test_every_bin_expects_a_hundred_draws_and_holds_falling_probabilities():
    bins = pool_tokens(PROBABILITIES, 20_000)
    expected = np.bincount(bins, PROBABILITIES * 20_000)
    assert expected.min() >= 100
    assert len(expected) > 10
    order = np.argsort(-PROBABILITIES)
    assert (np.diff(bins[order]) >= 0).all()


def test_impossible_tokens_are_in_no_bin_and_give_p_0_when_drawn():
    probabilities = np.array([0.5, 0.0, 0.5])
    assert pool_tokens(probabilities, 1000).tolist() == [0, -1, 1]
    verdict = fit(np.array([0, 2, 1, 2]), probabilities)
    assert (verdict.p_value, verdict.worst) == (0.0, "token 1 was drawn and has no mass")


def test_few_draws_are_pooled_into_fifths_that_exact_binomials_judge():
    assert pool_tokens(np.full(10, 0.1), 50).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    all_equal = fit(np.zeros(20, int), np.full(10, 0.1))
    assert all_equal.p_value == pytest.approx(2 * 5 * two_sided(20, 20, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["fit", "fit of few", "independence", "independence of few"])
def test_p_values_of_correct_draws_are_small_with_the_stated_frequency(statistic):
    """Of 2,000 p-values at most 3 % lie below 0.02 and 0.5 % below 0.001; more than that once in 1e3."""
    rng = np.random.default_rng(2)
    even = np.full(4, 0.25)
    result = []
    for _ in range(2000):
        if statistic == "fit":
            verdict = fit(rng.choice(60, 5000, p=PROBABILITIES), PROBABILITIES)
        elif statistic == "fit of few":
            verdict = fit(rng.choice(60, 24, p=PROBABILITIES), PROBABILITIES)
        elif statistic == "independence of few":
            verdict = independence(rng.integers(0, 4, 24), rng.integers(0, 4, 24), even, "pairs")
        else:
            verdict = independence(rng.integers(0, 4, 2000), rng.integers(0, 4, 2000), even, "pairs")
        result.append(verdict.p_value)
    result = np.array(result)
    assert (result < 0.02).mean() <= 0.03
    assert (result < 0.001).mean() <= 0.005


@pytest.mark.parametrize(
    ("shift", "seen"), [(0.0, False), (0.01, True)], ids=["the distribution", "one per cent moved"]
)
def test_one_per_cent_of_the_mass_moved_from_the_tail_is_seen(shift, seen):
    rng = np.random.default_rng(3)
    order = np.argsort(PROBABILITIES)
    light = np.cumsum(PROBABILITIES[order]) <= 0.0101
    moved = PROBABILITIES.copy()
    if shift:
        moved[order[light]] = 0
        moved /= moved.sum()
    verdict = fit(rng.choice(60, 20_000, p=moved), PROBABILITIES)
    assert (verdict.p_value < 1e-6) == seen


def test_bins_of_residuals_have_no_gap_where_not_every_rounding_occurs():
    p, q = torch.tensor([[0.3002, 0.2, 0.4998], [0.3001, 0.3, 0.3999]], dtype=torch.float64)
    assert bins_of_residuals(p, q).tolist() == [1, -1, 0]
    p, q = p[:2], q[:2]  # the token that would be in bin 0 is not of the residual
    assert bins_of_residuals(p, q).tolist() == [0, -1]
    assert fit(np.array([0, 0]), (p - q).clamp(min=0).numpy(), bins_of_residuals(p, q)).p_value == 1.0


class TestCoincidences:
    SIZE, ROWS = 20_011, 1100

    def tokens(self, seed):
        return np.random.default_rng(seed).integers(0, self.SIZE, self.ROWS)

    def test_ten_rows_with_shared_noise_are_seen_and_the_distance_is_named(self):
        tokens = self.tokens(0)
        tokens[1000:1010] = tokens[:10]
        verdict = coincidences(tokens, 1 / self.SIZE, "tokens")
        assert verdict.p_value < 1e-12
        assert verdict.worst == "1000 rows apart: the same tokens 10 times, expected 0.00"


# The stopwatch behind a busy device, with a fake clock and a fake device.


class Machine:
    """A clock and a device with a time to wake up; a cycle is a nanosecond."""

    def __init__(self):
        self.now, self.awake_at = 0.0, 0.0

    def sleep(self, cycles):
        self.awake_at = self.now + cycles * 1e-9

    def wait(self):
        self.now = max(self.now, self.awake_at)

    def event(self):
        return self

    def record(self):
        pass

    def query(self):
        return self.now >= self.awake_at


@pytest.fixture
def machine(monkeypatch):
    here = Machine()
    monkeypatch.setattr(device, "_cycles_per_second", lambda: 1e9)
    monkeypatch.setattr(device.time, "perf_counter", lambda: here.now)
    monkeypatch.setattr(torch.cuda, "synchronize", here.wait)
    monkeypatch.setattr(torch.cuda, "_sleep", here.sleep)
    monkeypatch.setattr(torch.cuda, "Event", here.event)
    return here


def calls_taking(machine, *seconds):
    """Make a call of given durations, the last duration repeated. Three calls precede the measurement."""
    left = [0.0, 0.0, 0.0, *seconds]

    def work():
        machine.now += left.pop(0) if len(left) > 1 else left[0]

    return work


def test_a_call_that_returns_at_once_is_measured_once(machine):
    assert seconds_behind_a_busy_device(calls_taking(machine, 0.001, 0.5)) == (pytest.approx(0.001), True)


@pytest.mark.parametrize("held_up", [(0.03,), (0.03, 0.05)])
def test_a_call_that_another_program_holds_up_is_measured_again(machine, held_up):
    work = calls_taking(machine, *held_up, 0.001)
    assert seconds_behind_a_busy_device(work) == (pytest.approx(0.001), True)


def test_a_slow_call_is_reported_as_slow(machine):
    seconds, slept = seconds_behind_a_busy_device(calls_taking(machine, 0.04, 0.03, 0.05))
    assert slept
    assert seconds == pytest.approx(0.03)
    assert seconds > LONGEST_CALL_SECONDS


@pytest.mark.parametrize("slow", [0, 1])
def test_a_waiting_call_is_reported_in_any_reading(machine, slow):
    times = iter([0.0] * 3 + [0.03] * slow)

    def work():
        try:
            machine.now += next(times)
        except StopIteration:
            machine.wait()

    seconds, slept = seconds_behind_a_busy_device(work)
    assert not slept
    assert seconds == pytest.approx(0.2)


def test_kept_sets_of_samplers_from_probabilities_may_tie_where_these_do_in_float32():
    """Rows so flat that float32 probabilities next to the last kept token are equal or in another order."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.empty(64, 37_574).uniform_(0, 0.009367, generator=generator)
    params = [SamplingParams(temperature=5.037574291, top_p=4.0e-5)] * len(logits)
    kept = {by: kept_sets._Rows(logits, params, by_probability=by).high for by in (False, True)}
    probs = torch.softmax(logits / 5.037574291, dim=1).sort(dim=1, descending=True).values
    needed = (probs.double().cumsum(1) < 4.0e-5).sum(1, keepdim=True)
    drawn = (probs >= probs.gather(1, needed)).sum(1)
    assert (drawn > kept[False]).sum() > 8
    assert (drawn <= kept[True]).all()
    assert kept[True].max() < 30  # of 37,574
