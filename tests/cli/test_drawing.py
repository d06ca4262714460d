"""``tokendraw sample`` and ``generate``: logits of each format, the library's tokens and texts, and who drew them."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tokendraw
from command_line import DRAWN_BY_NATIVE, NATIVE_ON_CPU, call
from fake_dists import EVERYTHING, plugin
from tokendraw import SamplingMetadata, SamplingParams, TokendrawError
from tokendraw.cli import drawing as _drawing
from tokendraw.cli.drawing import documentation, read_logits

STORY = ["The cat sat on the mat, and the dog slept.", "The cat sat on the mat, and the bird sang."]
"""Two sentences with an obvious greedy continuation."""
STATEMENT = ("The import statement", "--temperature", "0.7", "--top-k", "40", "--top-p", "0.9")


@pytest.fixture
def story(monkeypatch):
    monkeypatch.setattr(_drawing, "documentation", lambda: STORY)


@pytest.fixture
def excerpt(monkeypatch):
    """The beginning of the documentation, to which a model is fitted quickly."""
    paragraphs = documentation()[:100]
    monkeypatch.setattr(_drawing, "documentation", lambda: paragraphs)


def generate(*arguments):
    return call("generate", *NATIVE_ON_CPU, *arguments)


def text(*arguments):
    result = generate(*arguments, "--quiet")
    assert (result.stderr, result.exit_code) == ("", 0)
    return result.stdout


@pytest.mark.usefixtures("excerpt")
class TestSeeds:
    def test_a_seed_decides_the_text(self):
        first, again, other = (text(*STATEMENT, "--seed", seed) for seed in (7, 7, 8))
        assert first == again != other

    def test_a_text_resumed_from_its_beginning_goes_on_as_if_it_had_never_stopped(self):
        """The position is the index in the sequence, so the text so far as a prompt continues the same way."""
        full_text = text(*STATEMENT, "--seed", "7", "-n", "30").rstrip("\n")
        first_part = text(*STATEMENT, "--seed", "7", "-n", "12").rstrip("\n")
        assert full_text.startswith(first_part)
        assert text(first_part, *STATEMENT[1:], "--seed", "7", "-n", "18").rstrip("\n") == full_text


@pytest.mark.usefixtures("story")
class TestPrinting:
    def test_the_prompt_and_its_continuation_are_printed(self):
        result = generate("The cat", "--temperature", "0", "-n", "6")
        assert result.stdout == "The cat sat on the mat, and\n"
        assert (result.stderr, result.exit_code) == (DRAWN_BY_NATIVE, 0)

    def test_unknown_words_are_kept_as_they_were_typed(self):
        assert text("A zebra sat on the", "--temperature", "0", "-n", "1") == "A zebra sat on the mat\n"


class TestDemoModel:
    """Interpolated absolute discounting over the words of the documentation."""

    def test_a_python_without_help_pages_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
        with pytest.raises(TokendrawError) as caught:
            documentation()
        assert str(caught.value) == (
            "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
            "Install Python's full standard library."
        )


ROWS = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]])
NAN, INF = float("nan"), float("inf")


SAVED = {
    "rows": (ROWS, ROWS),
    "float16": (ROWS.half(), ROWS.half()),
    "bfloat16": (ROWS.bfloat16(), ROWS.bfloat16()),
    "float64": (ROWS.double(), ROWS),
    "one row": (ROWS[0], ROWS[:1]),
    "a vocabulary of one": (torch.zeros(3, 1), torch.zeros(3, 1)),
    "NaN and infinities in float64": (
        torch.tensor([[NAN, INF, -INF]]).double(),
        torch.tensor([[NAN, INF, -INF]]),
    ),
}


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
@pytest.mark.parametrize("saved", SAVED)
def test_values_become_rows_of_their_dtype_or_of_float32(tmp_path, ending, saved):
    values, rows = SAVED[saved]
    if (values.dtype, ending) == (torch.bfloat16, ".npy"):
        return  # numpy has no bfloat16
    path = tmp_path / f"x{ending}"
    np.save(path, values.numpy()) if ending == ".npy" else save_file({"logits": values.contiguous()}, path)
    logits_file = read_logits(path)
    torch.testing.assert_close(logits_file.logits, rows, rtol=0, atol=0, equal_nan=True)
    assert logits_file.dtype == str(values.dtype).removeprefix("torch.")
    assert logits_file.tensor == ("logits" if ending == ".safetensors" else None)


LOGITS = torch.tensor(
    [
        [1.0, 0.0, 3.0, -1.0, 2.0],
        [0.0, NAN, 1.0, 0.5, -INF],
        [NAN] * 5,
        [0.0, INF, 0.0, 0.0, 0.0],
    ]
)


@pytest.fixture
def file(tmp_path):
    """A file with a plain row of logits, a row with a NaN, a row of NaNs, and a row with +inf."""
    np.save(tmp_path / "logits.npy", LOGITS.numpy())
    return tmp_path / "logits.npy"


@pytest.fixture
def equal_rows(tmp_path):
    """Forty equal rows: only the noise decides."""
    np.save(tmp_path / "x.npy", np.zeros((40, 1000), np.float32))
    return tmp_path / "x.npy"


def sample(*arguments, standard_input=None):
    return call("sample", *NATIVE_ON_CPU, *arguments, standard_input=standard_input)


def in_json(*arguments):
    result = sample(*arguments, "--json")
    assert (result.stderr, result.exit_code) == ("", 0)
    return json.loads(result.stdout)


def tokens(*arguments):
    return [row["token_id"] for row in in_json(*arguments)["rows"]]


def test_one_line_a_row(file):
    result = sample(file, "--temperature", "0")
    assert result.stdout == (
        "row  token  valid\n0    2      yes\n1    2      no\n2    0      no\n3    1      yes\n"
    )
    assert result.stderr == (
        DRAWN_BY_NATIVE
        + "2 of 4 rows hold NaN, or nothing above -inf, which gives token 0: shown as not valid\n"
    )
    assert result.exit_code == 0


def test_logprobs_add_the_value_the_rank_the_mass_and_the_best(tmp_path):
    np.save(tmp_path / "x.npy", torch.tensor([[0.75, 0.25, 0.0]]).log().numpy())
    result = sample(tmp_path / "x.npy", "--temperature", "0", "--logprobs", "3", "-q")
    assert result.stdout == (
        "row  token  valid  raw_logprobs  rank  kept mass  best\n"
        "0    0      yes    -0.2877       1     1.0000     0 (-0.2877), 1 (-1.3863), 2 (-inf)\n"
    )


def test_every_parameter_reaches_the_sampler(tmp_path):
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(1)) * 2
    save_file({"logits": logits}, tmp_path / "x.safetensors")
    options = {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "typical_p": 0.95,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.02,
        "seed": 11,
        "filter_order": "joint",
        "logprobs": 2,
    }
    flags = [text for k, v in options.items() for text in (f"--{k.replace('_', '-')}", v)]
    output = in_json(tmp_path / "x.safetensors", *flags, "--position", "5")
    sampler = tokendraw.load_sampler("native", device="cpu")
    metadata = SamplingMetadata.from_params([SamplingParams(**options)] * 64, positions=[5] * 64)
    expected = sampler.sample(logits, metadata)
    assert [row["token_id"] for row in output["rows"]] == expected.token_ids.tolist()
    assert [row["log_kept_mass"] for row in output["rows"]] == expected.log_kept_mass.tolist()
    assert [[e["token_id"] for e in row["best"]] for row in output["rows"]] == (
        expected.logprobs.token_ids[:, 1:].tolist()
    )


def test_in_a_sequence_row_i_stands_at_position_plus_i(equal_rows):
    token_ids = tokens(equal_rows, "--seed", 3, "--position", 7, "--sequence")
    assert len(set(token_ids)) > 30
    assert set(tokens(equal_rows, "--seed", 3, "--position", 11)) == {token_ids[4]}


class TestStandardInput:
    """``-`` as file: the content decides the format."""

    @pytest.mark.parametrize("ending", [".npy", ".safetensors"])
    def test_each_format_is_read(self, tmp_path, ending):
        path = tmp_path / f"x{ending}"
        np.save(path, LOGITS.numpy()) if ending == ".npy" else save_file({"logits": LOGITS}, path)
        piped = sample("-", "--temperature", "0", standard_input=path.read_bytes())
        assert piped.stdout == (
            "row  token  valid\n0    2      yes\n1    2      no\n2    0      no\n3    1      yes\n"
        )
        assert piped.exit_code == 0
        assert piped.stdout == sample(path, "--temperature", "0").stdout

    @pytest.mark.parametrize("option", ["--tensor", "--key"])
    def test_one_of_several_arrays_is_picked_by_name(self, tmp_path, option):
        save_file({"a": LOGITS, "b": LOGITS[3:].clone()}, tmp_path / "x.safetensors")
        options = ("-", option, "b", "--temperature", "0", "--json")
        output = json.loads(sample(*options, standard_input=(tmp_path / "x.safetensors").read_bytes()).stdout)
        assert (output["file"], output["tensor"], output["shape"]) == ("-", "b", [1, 5])
        assert [row["token_id"] for row in output["rows"]] == [1]


def test_a_sampler_without_a_valid_flag_says_nothing_about_the_rows(dists, tmp_path):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("valid_flag=True, ", "")))
    np.save(tmp_path / "nan.npy", np.array([[0, NAN, 1], [0, 1, 0]]))
    result = call("sample", tmp_path / "nan.npy", "--device", "cpu")
    assert result.stdout == "row  token  valid\n0    1      -\n1    1      -\n"
    assert result.stderr.endswith("\nthe file holds float64, rounded to float32\n")  # and none is not valid


@pytest.fixture
def limited(dists, tmp_path, monkeypatch, story):
    """A sampler without seeds and greedy rows, a file of four rows, and a small language model."""
    less = EVERYTHING.replace("greedy=True", "greedy=False").replace("'counter'", "'launch'")
    dists.add_plugin("limited", plugin("limited", priority=-1, capabilities=less))
    monkeypatch.chdir(tmp_path)
    np.save("logits.npy", np.zeros((4, 5), np.float32))


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("command", [("generate", "The", "-n", "3"), ("sample", "logits.npy")], ids=str)
def test_the_line_on_stderr_names_the_sampler_that_drew(command):
    chosen = ("--sampler", "limited", "--device", "cpu")
    for options in (("--seed", "7"), ("--temperature", "0")):
        result = call(*command, *chosen, *options)
        reason = "it draws what limited cannot (asked for by --sampler)"
        assert (result.stderr, result.exit_code) == (f"drawn by native on cpu: {reason}\n", 0)
    result = call(*command, *chosen)
    reason = "asked for by --sampler; native draws what limited cannot"
    assert (result.stderr, result.exit_code) == (f"drawn by limited on cpu: {reason}\n", 0)
