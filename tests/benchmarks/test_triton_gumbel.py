"""The commands of ``benchmarks/triton_gumbel`` on a CPU, small, with native against native, and the verdicts."""

import contextlib
import dataclasses
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_native.verify
from fake_dists import install_limited
from tokendraw import SamplerOutput, SamplingParams
from tokendraw_testing import reference


def cells(result):
    """Split the table into rows of cells, without the rule."""
    rows = [line.strip("| ").split(" | ") for line in result.stdout.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "---"]


def test_a_sampler_equals_native_and_the_file_has_the_printed_text(call, tmp_path):
    path = tmp_path / "agree.md"
    result = call("agree", "--draws", 300, "--output", path)
    assert result.exit_code == 0, result.output
    lines = path.read_text(encoding="utf-8").splitlines()
    assert result.stdout.splitlines()[: len(lines)] == lines
    assert lines[0] == (
        "`python benchmarks/triton_gumbel agree --draws 300 --sampler native --device cpu --small "
        f"--output {path}`"
    )
    assert lines[2].startswith(f"cpu: tokendraw {tokendraw.__version__}, torch {torch.__version__}, ")
    assert "(100.0000 %, needed 99.99 %)" in lines[4]
    total = cells(result)[-1]
    assert total[0] == "all"
    assert int(total[2]) >= 300
    assert total[2:] == [total[2], total[2], "0", "", "0"]


def test_every_disagreement_is_listed_with_a_margin(call, benchmarks, monkeypatch):
    """A row of the first batch draws a wrong token, too far off for rounding."""
    native = tokendraw.load_sampler("native", device="cpu")

    class Wrong:
        name = "wrong"

        def sample(self, logits, metadata):
            output = native.sample(logits, metadata)
            output.token_ids[7] = (output.token_ids[7] + 1) % logits.shape[1]
            return SamplerOutput(output.token_ids, output.valid)

    monkeypatch.setattr(benchmarks("setting").Setting, "subject", Wrong())
    result = call("agree", "--draws", 20)
    assert result.exit_code == 1
    listed = cells(result)[-1]
    assert listed[:3] == ["1000", "float32", "gaussian"]
    ours, theirs, right = map(int, listed[4:7])
    assert ours == theirs + 1
    assert right == theirs
    assert listed[-1] == "not explained"


@pytest.mark.slow
def test_a_sampler_verifies_as_itself_whatever_is_known_of_the_drafts(call):
    result = call("chains", "--requests", 120)
    assert result.exit_code == 0, result.output
    assert "fp32: 132 of 132 requests agree (100.0000 %, needed 99.99 %), and " in result.stdout
    tables = cells(result)
    counted = {tuple(row[:2]): row[2:] for row in tables if row[0] in ("fp32", "fp64") and len(row) == 7}
    for noise, requests in (("fp32", 33), ("fp64", 8)):
        for kind in ("logits", "probs", "chosen", "coupled"):
            compared, emitted, accepted, *agreement = counted[noise, kind]
            assert (compared, agreement) == (str(requests), ["0", "100.0000 %"])
            assert int(emitted) == requests + int(accepted) > requests
        assert counted[noise, "as draft() draws them"][-2:] == ["0", "100.0000 %"]
    assert [row[-1] for row in tables[-2:]] == ["0", "0"]
    assert "Replays of CUDA graphs were not tried: there is no CUDA device." in result.stdout


def test_a_single_dtype_of_the_noise_can_be_compared_alone(call):
    result = call("chains", "--requests", 40, "--noise", "fp64")
    assert result.exit_code == 0, result.output
    assert {row[0] for row in cells(result) if row[0].startswith("fp")} == {"fp64"}
    assert "--noise fp64 --requests 40" in result.stdout.splitlines()[0]


class Planted:
    """The native sampler, with a piece of its verification exchanged."""

    def __init__(self, native, pieces):
        self._native, self._pieces = native, pieces

    def __getattr__(self, name):
        return getattr(self._native, name)

    def verify(self, *args, **kwargs):
        with mock.patch.dict(vars(tokendraw_native.verify), self._pieces):
            return self._native.verify(*args, **kwargs)


@pytest.fixture
def call_planted(call, benchmarks, monkeypatch):
    def run(pieces):
        setting = benchmarks("setting").Setting
        load = setting.load

        def loaded(self, name, **options):
            native = load(self, "native", **options)
            return native if name == "native" else Planted(native, pieces)

        monkeypatch.setattr(setting, "load", loaded)
        return call("chains", "--requests", 60, sampler="planted")

    return run


@pytest.mark.parametrize("accepts_all", [True, False])
@pytest.mark.slow
def test_a_verification_accepting_or_rejecting_all_drafts_is_reported(call_planted, accepts_all):
    result = call_planted({"accepts": lambda u, p, q: (q > 0) & accepts_all})
    assert result.exit_code == 1
    tables = cells(result)
    listed = [row for row in tables if len(row) == 8][1:]
    assert 5 <= len(listed) <= 20
    for *_, noise, kind, ours, theirs in listed:
        more, less = (int(chain.split("(")[1].rstrip(")")) for chain in (ours, theirs))
        assert (noise, kind == "coupled", more > less) == ("fp32", False, accepts_all), (ours, theirs)
    rejected = [int(row[-1]) for row in tables[-2:]]
    assert [number > 0 for number in rejected] == [not accepts_all] * 2


def test_drafts_beyond_the_sampler_end_the_command(call, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(install_limited(tmp_path, verify={"ragged_drafts": False}))
    result = call("chains", "--requests", 60, sampler="limited")
    assert result.exit_code == 1
    said = result.stdout.strip().splitlines()[-1]
    assert "'limited' cannot serve requests with different numbers of drafts, " in said


@pytest.mark.parametrize("is_stale", [True, False])
def test_replays_are_compared_with_eager_calls_after_every_change(benchmarks, monkeypatch, is_stale):
    """A graph is a call made again into the output of the first; a stale one leaves the tokens as they were."""
    replays, native = benchmarks("replays"), tokendraw.load_sampler("native", device="cpu")

    def captured(call):
        output = call()

        def replay():
            fresh = call()
            for name in ("token_ids", "num_accepted", "valid")[is_stale:]:
                getattr(output, name).copy_(getattr(fresh, name))

        return SimpleNamespace(replay=replay), output

    monkeypatch.setattr(replays, "captured", captured)
    monkeypatch.setattr(replays, "sync_is_an_error", contextlib.nullcontext)
    lines, holds = replays.replayed(native, "probs", torch.Generator(), requests=10, vocab_size=50)
    wrong = "30" if is_stale else "0"
    assert lines == [[filters, "3", wrong, "no"] for filters in ("mixed", "none", "top-k and top-p")]
    assert holds is not is_stale


def test_the_host_time_of_a_step_has_a_row_for_each_kind_of_call(call):
    result = call("step")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in cells(result)[1:]] == [
        "seeded",
        "unseeded",
        "seeded, top-k and top-p",
        "seeded, logprobs=0",
        "seeded, logprobs=5",
        "verify, draft_logits",
        "verify, draft_probs, top-k and top-p",
        "verify, chosen drafts",
    ]
    assert all(float(figure) > 0 for row in cells(result)[1:] for figure in row[1:5])


def test_a_batch_as_arrays_equals_the_batch_of_requests(benchmarks):
    batch = benchmarks("batches").mixed(np.random.default_rng(1), 40)
    for rows in (slice(None), [3], np.flatnonzero(batch.greedy)):
        part = dataclasses.replace(batch, **{name: column[rows] for name, column in vars(batch).items()})
        params = [part.params(row) for row in range(len(part.seed))]
        made = tokendraw.SamplingMetadata.from_params(params, positions=part.position.tolist())
        found = part.metadata(torch.device("cpu"))
        assert found.facts == made.facts
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "positions"):
            assert torch.equal(getattr(found, name), getattr(made, name)), name


def test_the_races_equal_the_reference(benchmarks):
    margins, rng = benchmarks("margins"), np.random.default_rng(2)
    for position in range(20):
        x = 3 * rng.standard_normal(3000)
        params = SamplingParams(top_p=0.95, seed=5)
        token, lead = reference.draw(reference.prepare(x, params), 5, position)
        found = margins.margin(x, params, position, token)
        assert (found.token, found.edge) == (token, math.inf)
        assert min(found.tile_lead, found.token_lead) == pytest.approx(lead, rel=1e-9)


def test_a_token_drawn_after_a_small_change_of_top_p_is_put_down_to_rounding(benchmarks):
    """Two tokens share the mass, and the edge runs between them: the second one's fate hangs on rounding."""
    margins, x = benchmarks("margins"), np.log(np.array([0.5, 0.5 - 1e-12, 1e-12]))
    drawn = {}
    for position in range(50):
        for p in (0.49, 0.51):
            params = SamplingParams(top_p=p, seed=5)
            drawn[p, position] = reference.draw(reference.prepare(x, params), 5, position)[0]
    position = next(n for n in range(50) if drawn[0.49, n] != drawn[0.51, n])
    found = margins.margin(x, SamplingParams(top_p=0.5, seed=5), position, drawn[0.51, position])
    assert (found.token, found.explained, found.uncertain) == (drawn[0.49, position], True, True)
    assert 0 < found.edge <= 1e-6
    far = margins.margin(x, SamplingParams(top_p=0.4, seed=5), position, drawn[0.51, position])
    assert not far.explained
