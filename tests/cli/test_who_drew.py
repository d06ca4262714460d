"""The line ``drawn by ...`` names the sampler that drew, also if the chosen sampler left its rows to the companion."""

import numpy as np
import pytest

from command_line import call
from fake_dists import install_limited
from tokendraw.cli import generate as _generate

CHOSEN = ("--sampler", "limited", "--device", "cpu")
BY_NATIVE = "drawn by native on cpu: it draws what limited cannot (asked for by --sampler)\n"
BY_LIMITED = "drawn by limited on cpu: asked for by --sampler; native draws what limited cannot\n"


@pytest.fixture(autouse=True)
def limited(tmp_path, monkeypatch):
    """A sampler without seeds and greedy rows, a file of four rows, and a small language model."""
    less = {"greedy": False, "seeding": "launch"}
    monkeypatch.syspath_prepend(install_limited(tmp_path, less, less))
    monkeypatch.chdir(tmp_path)
    np.save("logits.npy", np.zeros((4, 5), np.float32))
    monkeypatch.setattr(_generate, "documentation", lambda: ["The cat sat on the mat, and the dog slept."])


@pytest.mark.parametrize("streams", ["--stream", "--no-stream"])
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--seed", "7"), BY_NATIVE),
        (("--temperature", "0"), BY_NATIVE),
        ((), BY_LIMITED),
    ],
    ids=["seeded", "greedy", "neither"],
)
def test_a_text_is_by_the_sampler_that_drew_it(options, line, streams):
    result = call("generate", "The", "-n", "3", *CHOSEN, *options, streams)
    assert (result.stderr, result.exit_code) == (line, 0)
    assert result.stdout.startswith("The")


def test_texts_of_several_samplers_name_each_with_its_rows():
    """Five settings draw four tokens each; the greedy setting goes to native."""
    result = call("generate", "The", "-n", "4", *CHOSEN, "--compare")
    assert result.stderr == (
        "drawn by limited (16 of 20 rows) and native (4 of 20 rows) on cpu: asked for by --sampler; native draws "
        "what limited cannot\n"
    )


@pytest.mark.parametrize(("options", "line"), [(("--seed", "7"), BY_NATIVE), ((), BY_LIMITED)])
def test_rows_of_a_file_are_by_the_sampler_that_drew_them(options, line):
    result = call("sample", "logits.npy", *CHOSEN, *options)
    assert (result.stderr, result.exit_code) == (line, 0)
