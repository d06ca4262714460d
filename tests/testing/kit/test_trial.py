"""The judge of the kit: exact demands, and statistics with a second look."""

import numpy as np
import pytest

from tokendraw_testing.kit.trial import FALSE_ALARM, Trial, Verdict, Violation


def verdicts(*p_values):
    """Make an experiment with given p-values in turn, and the list of requested draws."""
    requested, left = [], list(p_values)

    def experiment(rng, draws):
        requested.append((draws, int(rng.integers(2**32))))
        return Verdict(left.pop(0), "token 3 drawn 5 times, expected 9.0", draws)

    return experiment, requested


def test_a_run_calls_a_correct_sampler_wrong_at_most_once_in_a_million():
    assert pytest.approx(1e-6) == FALSE_ALARM


def test_an_unsuspicious_first_look_is_the_only_one():
    trial, (experiment, requested) = Trial("p", 0), verdicts(1e-3)
    trial.judge("label", experiment, 100)
    assert len(requested) == 1
    assert (trial.checks, trial.draws) == (1, 100)
    assert trial.least == (1e-3, "label: token 3 drawn 5 times, expected 9.0")


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


def test_uniform_p_values_are_looked_at_twice_once_in_a_thousand_and_never_convicted():
    rng, trial, second = np.random.default_rng(0), Trial("p", 0), 0

    def experiment(generator, draws):
        nonlocal second
        second += draws == 4
        return Verdict(float(rng.random()), "", draws)

    for i in range(20_000):
        trial.judge(str(i), experiment, 1)
    assert 1 <= second <= 50  # 20 expected; outside once in 1e8
