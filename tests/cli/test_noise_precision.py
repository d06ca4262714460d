"""``--gumbel-dtype``: every command that draws uses noise of the given precision.

Every row has one token of float32 noise and another of float64 noise.
"""

import json
import re

import numpy as np
import pytest
import torch

from command_line import NATIVE_ON_CPU, call
from fake_dists import EVERYTHING, plugin
from goodness_of_fit import SAMPLE, drop_float64
from tokendraw import SamplingParams, philox
from tokendraw.cli import drawing as _drawing
from tokendraw_testing import reference
from tokendraw_testing.cases.telling import POSITION, telling_rows

OPTIONS = {(): "fp32", ("--gumbel-dtype", "fp32"): "fp32", ("--gumbel-dtype", "fp64"): "fp64"}

with_each_option = pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: " ".join(options) or "default"
)


def token_of(row, dtype):
    return reference.draw(reference.prepare(row.logits, SamplingParams()), row.seed, POSITION, dtype)[0]


def expected_token(tokens, options):
    """The token under the precision of the options, after a check that the precisions differ in it."""
    assert tokens["fp32"] != tokens["fp64"]
    return tokens[OPTIONS[options]]


def words(size):
    """A text of as many different words."""
    return " ".join(map(str, range(size)))


def generated(seed, *options):
    """The first token of a text."""
    result = call("generate", "x " * POSITION, *NATIVE_ON_CPU, "--seed", seed, "--json", *options)
    assert (result.stderr, result.exit_code) == ("", 0)
    (entry,) = json.loads(result.stdout)["texts"]
    return entry["token_ids"][0]


@with_each_option
class TestDraws:
    def test_sample(self, options, tmp_path):
        for row in telling_rows(*SAMPLE):
            np.save(tmp_path / "row.npy", row.logits)
            file, where = tmp_path / "row.npy", ("--seed", row.seed, "--position", POSITION)
            output = json.loads(call("sample", file, *NATIVE_ON_CPU, *where, *options, "--json").stdout)
            expected = {dtype: token_of(row, dtype) for dtype in ("fp32", "fp64")}
            assert output["rows"][0]["token_id"] == expected_token(expected, options)
            assert output["resolution"]["need"]["gumbel_dtype"] == OPTIONS[options]

    def test_generate(self, options, monkeypatch):
        for row in telling_rows(*SAMPLE):
            logits, text = torch.from_numpy(row.logits), words(len(row.logits))
            monkeypatch.setattr(_drawing.DemoModel, "logits", lambda model, sequence, row=logits: row)
            monkeypatch.setattr(_drawing, "documentation", lambda text=text: [text])
            expected = {dtype: token_of(row, dtype) for dtype in ("fp32", "fp64")}
            assert generated(row.seed, "-n", 1, *options) == expected_token(expected, options)


class TestCheck:
    @staticmethod
    def check(*options):
        result = call("check", *options, "--device", "cpu", "--quick", "--only", "noise precision", "--json")
        assert result.stderr == ""
        report = json.loads(result.stdout)
        assert result.exit_code == (0 if report["passed"] else 1)
        return report

    @staticmethod
    def telling(report, dtype):
        """Number of draws that tell noise of this precision from noise of the other precision."""
        return int(
            re.search(rf"^(\d+) rows that tell (?:fp32 and )?{dtype} noise$", report["lines"][0]["detail"])[1]
        )

    @pytest.mark.slow
    def test_the_sampler_is_built_for_it_and_compared_with_it(self):
        report = self.check("native", "--gumbel-dtype", "fp64")
        assert (report["passed"], report["gumbel_dtype"]) == (True, "fp64")
        assert self.telling(report, "fp64") >= 12

    @pytest.mark.slow
    def test_without_the_option_all_advertised_are_compared(self):
        report = self.check("native")
        assert (report["passed"], report["gumbel_dtype"]) == (True, None)
        assert self.telling(report, "fp64") >= 24

    def test_float32_noise_in_its_place_is_seen(self, monkeypatch):
        drop_float64(monkeypatch, philox.TOKEN)
        report = self.check("native", "--gumbel-dtype", "fp64")
        assert [line["status"] for line in report["lines"]] == ["failed"]
        assert "of fp64 noise, found" in report["lines"][0]["detail"]

    def test_the_heading_names_it_and_the_command_to_run_again_has_it(self, monkeypatch):
        drop_float64(monkeypatch, philox.TILE)
        arguments = ("--device", "cpu", "--quick", "--only", "noise precision", "--gumbel-dtype", "fp64")
        stdout = call("check", "native", *arguments).stdout
        assert stdout.startswith("native on cpu, fp64 noise: tokendraw ")
        again = "Again: tokendraw check native --device cpu --quick --gumbel-dtype fp64 --only 'noise precision'\n"
        assert again in stdout

    def test_a_sampler_without_it_is_refused_with_its_reason(self, dists):
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
        result = call("check", "acme", "--device", "cpu", "--gumbel-dtype", "fp64")
        assert (result.stdout, result.exit_code) == ("", 1)
        assert result.stderr == (
            "'acme' cannot be checked on cpu: the request needs fp64 noise, found fp32.\n"
        )
