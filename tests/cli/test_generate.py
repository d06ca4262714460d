"""``tokendraw generate``: the same text for the same seed, what is printed, and who drew it."""

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch

import tokendraw
from command_line import DRAWN_BY_NATIVE, NATIVE_ON_CPU, call
from fake_dists import install_limited
from tokendraw import SamplingParams, TokendrawError
from tokendraw.cli import drawing as _drawing
from tokendraw.cli.drawing import DemoModel, documentation

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


@pytest.fixture
def story_model(story):
    return DemoModel(tokendraw.load_sampler("native", device="cpu"))


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

    def test_without_a_seed_every_run_differs(self):
        assert text(*STATEMENT) != text(*STATEMENT)

    def test_a_text_resumed_from_its_beginning_goes_on_as_if_it_had_never_stopped(self):
        """The position is the index in the sequence, so the text so far as a prompt continues the same way."""
        full_text = text(*STATEMENT, "--seed", "7", "-n", "30").rstrip("\n")
        first_part = text(*STATEMENT, "--seed", "7", "-n", "12").rstrip("\n")
        assert full_text.startswith(first_part)
        assert text(first_part, *STATEMENT[1:], "--seed", "7", "-n", "18").rstrip("\n") == full_text


@pytest.mark.usefixtures("story")
class TestPrinting:
    GREEDY = ("--temperature", "0", "-n", "6")
    CONTINUED = "The cat sat on the mat, and\n"

    def test_the_prompt_and_its_continuation_are_printed(self):
        result = generate("The cat", *self.GREEDY)
        assert result.stdout == self.CONTINUED
        assert (result.stderr, result.exit_code) == (DRAWN_BY_NATIVE, 0)

    def test_a_space_at_the_end_of_the_prompt_is_not_doubled(self):
        assert text("The cat ", *self.GREEDY) == self.CONTINUED

    def test_an_empty_prompt_begins_a_paragraph(self):
        assert text("", *self.GREEDY) == "The cat sat on the mat\n"

    def test_unknown_words_are_kept_as_they_were_typed(self):
        assert text("A zebra sat on the", "--temperature", "0", "-n", "1") == "A zebra sat on the mat\n"

    def test_json_is_complete(self, story_model):
        result = generate("The cat", *self.GREEDY, "--seed", "3", "--json")
        assert (result.stderr, result.exit_code) == ("", 0)
        output = json.loads(result.stdout)
        assert output.pop("resolution")["chosen"] == "native"
        token_ids = output["texts"][0]["token_ids"]
        assert [story_model.vocabulary[i] for i in token_ids] == [" sat", " on", " the", " mat", ",", " and"]
        assert output == {
            "schema_version": 1,
            "error": None,
            "prompt": "The cat",
            "sampler": "native",
            "device": "cpu",
            "texts": [
                {
                    "params": asdict(SamplingParams(temperature=0.0, seed=3)),
                    "token_ids": token_ids,
                    "text": " sat on the mat, and",
                }
            ],
        }


def test_the_help_has_a_line_for_each_example():
    lines = [line.strip() for line in call("generate", "--help").stdout.splitlines()]
    assert 'tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9' in lines


class TestDemoModel:
    """Interpolated absolute discounting over the words of the documentation."""

    def test_probabilities_follow_the_definition(self, story_model):
        """27 tokens of 14 words: " the" occurs four times and three words follow, " mat" twice."""
        unigram = (2 - 0.75) / 27 + 0.75 * 14 / 27 * (1 / 14)
        bigram = (2 - 0.75) / 4 + 0.75 * 3 / 4 * unigram
        trigram = (2 - 0.75) / 2 + 0.75 * 1 / 2 * bigram
        longest = (2 - 0.75) / 2 + 0.75 * 1 / 2 * trigram
        ids = [story_model.vocabulary.index(word) for word in (" sat", " on", " the")]
        distribution = story_model.logits(ids).double().exp()
        assert distribution[story_model.vocabulary.index(" mat")].item() == pytest.approx(longest, rel=1e-5)
        assert distribution.sum().item() == pytest.approx(1, abs=1e-6)

    def test_after_an_unknown_word_only_the_words_behind_it_count(self, story_model):
        ids = [story_model.vocabulary.index(word) for word in (" on", " the")]
        with_unknown, without = story_model.logits([0, -1, *ids]), story_model.logits(ids)
        assert torch.equal(with_unknown, without)

    def test_the_documentation_of_this_python_is_prose(self):
        paragraphs = documentation()
        assert sum(map(len, paragraphs)) > 150_000
        assert not any("\n" in text or "::=" in text or ">>>" in text or '"' in text for text in paragraphs)
        assert len(set(paragraphs)) == len(paragraphs)

    def test_a_python_without_help_pages_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
        with pytest.raises(TokendrawError) as caught:
            documentation()
        assert str(caught.value) == (
            "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
            "Install Python's full standard library."
        )


CHOSEN = ("--sampler", "limited", "--device", "cpu")
BY_NATIVE = "drawn by native on cpu: it draws what limited cannot (asked for by --sampler)\n"
BY_LIMITED = "drawn by limited on cpu: asked for by --sampler; native draws what limited cannot\n"


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """A sampler without seeds and greedy rows, a file of four rows, and a small language model."""
    less = {"greedy": False, "seeding": "launch"}
    monkeypatch.syspath_prepend(install_limited(tmp_path, less, less))
    monkeypatch.chdir(tmp_path)
    np.save("logits.npy", np.zeros((4, 5), np.float32))
    monkeypatch.setattr(_drawing, "documentation", lambda: ["The cat sat on the mat, and the dog slept."])


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--seed", "7"), BY_NATIVE),
        (("--temperature", "0"), BY_NATIVE),
        ((), BY_LIMITED),
    ],
    ids=["seeded", "greedy", "neither"],
)
def test_a_text_is_by_the_sampler_that_drew_it(options, line):
    result = call("generate", "The", "-n", "3", *CHOSEN, *options)
    assert (result.stderr, result.exit_code) == (line, 0)
    assert result.stdout.startswith("The")


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(("options", "line"), [(("--seed", "7"), BY_NATIVE), ((), BY_LIMITED)])
def test_rows_of_a_file_are_by_the_sampler_that_drew_them(options, line):
    result = call("sample", "logits.npy", *CHOSEN, *options)
    assert (result.stderr, result.exit_code) == (line, 0)
