"""``tokendraw generate``: the same text for the same seed, and every way of printing texts."""

import functools
import json

import pytest
import torch

from command_line import DRAWN_BY_NATIVE, NATIVE_ON_CPU, call
from tokendraw import SamplerOutput, SamplingParams
from tokendraw.cli.demo import built_in_model as _built_in_model
from tokendraw.cli.demo.built_in_model import draw_tokens
from tokendraw.cli.demo.corpus import documentation
from tokendraw.cli.demo.ngram import UNKNOWN, NGramModel
from tokendraw.cli.terminal.wrap import Wrapper

STORY = NGramModel(
    ["The cat sat on the mat, and the dog slept.", "The cat sat on the mat, and the bird sang."]
)
"""Two sentences with an obvious greedy continuation."""
STATEMENT = ("The import statement", "--temperature", "0.7", "--top-k", "40", "--top-p", "0.9")


@functools.cache
def documentation_model():
    return NGramModel(documentation())


@pytest.fixture
def story(monkeypatch):
    monkeypatch.setattr(_built_in_model, "language_model", lambda: STORY)


@pytest.fixture
def docs(monkeypatch):
    monkeypatch.setattr(_built_in_model, "language_model", documentation_model)


def generate(*arguments):
    return call("generate", *NATIVE_ON_CPU, *arguments)


def text(*arguments):
    result = generate(*arguments, "--quiet")
    assert (result.stderr, result.exit_code) == ("", 0)
    return result.stdout


@pytest.mark.usefixtures("docs")
class TestSeeds:
    @pytest.mark.slow
    def test_a_seed_gives_the_same_text_in_every_run(self):
        assert text(*STATEMENT, "--seed", "7") == text(*STATEMENT, "--seed", "7")

    def test_another_seed_gives_another_text(self):
        assert text(*STATEMENT, "--seed", "7") != text(*STATEMENT, "--seed", "8")

    @pytest.mark.slow
    def test_without_a_seed_every_run_differs(self):
        assert text(*STATEMENT) != text(*STATEMENT)

    def test_temperature_0_is_the_same_for_all_seeds(self):
        texts = {
            text("The import statement", "--temperature", "0", *s) for s in ([], ["--seed", 7], ["--seed", 8])
        }
        assert len(texts) == 1

    def test_a_shorter_text_is_the_beginning_of_a_longer_one(self):
        long, short = text(*STATEMENT, "--seed", "7"), text(*STATEMENT, "--seed", "7", "-n", "20")
        assert long.startswith(short.rstrip("\n"))

    def test_a_resumed_text_goes_on_as_if_it_had_never_stopped(self):
        """The position is the index in the sequence, so the text so far as a prompt continues the same way."""
        full_text = text(*STATEMENT, "--seed", "7", "-n", "30").rstrip("\n")
        first_part = text(*STATEMENT, "--seed", "7", "-n", "12").rstrip("\n")
        assert text(first_part, *STATEMENT[1:], "--seed", "7", "-n", "18").rstrip("\n") == full_text

    @pytest.mark.slow
    def test_settings_change_the_text(self):
        texts = {
            text("A class is", "--seed", "1", *options)
            for options in (
                [],
                ["--temperature", "0.5"],
                ["--top-k", "2"],
                ["--top-p", "0.3"],
                ["--min-p", "0.3"],
                ["--temperature", "3"],
            )
        }
        assert len(texts) == 6


def test_each_step_draws_every_row_at_the_index_of_the_token_before():
    calls = []

    class Recorder:
        device = torch.device("cpu")

        def sample(self, logits, metadata):
            calls.append((list(logits.shape), metadata.positions.tolist()))
            ids = torch.tensor([1, 2])
            return SamplerOutput(token_ids=ids, valid=torch.ones(2, dtype=torch.bool))

    prompt = STORY.encode("The cat")
    steps = list(draw_tokens(STORY, Recorder(), prompt, [SamplingParams(seed=1)] * 2, 3))
    size = len(STORY.vocabulary)
    assert (len(prompt), steps) == (3, [[1, 2]] * 3)
    assert calls == [([2, size], [2, 2]), ([2, size], [3, 3]), ([2, size], [4, 4])]


@pytest.mark.usefixtures("story")
class TestPrinting:
    GREEDY = ("--temperature", "0", "-n", "6")
    CONTINUED = "The cat sat on the mat, and\n"

    def test_the_prompt_and_its_continuation_are_printed(self):
        result = generate("The cat", *self.GREEDY)
        assert result.stdout == self.CONTINUED
        assert (result.stderr, result.exit_code) == (DRAWN_BY_NATIVE, 0)

    @pytest.mark.parametrize("option", ["--stream", "--no-stream"])
    def test_streaming_prints_the_same_text_without_control_codes(self, option):
        assert text("The cat", *self.GREEDY, option) == self.CONTINUED

    def test_a_space_at_the_end_of_the_prompt_is_not_doubled(self):
        assert text("The cat ", *self.GREEDY) == self.CONTINUED

    def test_an_empty_prompt_begins_a_paragraph(self):
        assert text("", *self.GREEDY) == "The cat sat on the mat\n"

    def test_unknown_words_are_kept_as_they_were_typed(self):
        assert text("A zebra sat on the", "--temperature", "0", "-n", "1") == "A zebra sat on the mat\n"

    def test_json_is_complete(self):
        result = generate("The cat", *self.GREEDY, "--seed", "3", "--json")
        assert (result.stderr, result.exit_code) == ("", 0)
        output = json.loads(result.stdout)
        assert output.pop("resolution")["chosen"] == "native"
        token_ids = output["texts"][0]["token_ids"]
        assert [STORY.vocabulary[i] for i in token_ids] == ["sat", "on", "the", "mat", ",", "and"]
        assert output == {
            "schema_version": 1,
            "error": None,
            "prompt": "The cat",
            "sampler": "native",
            "device": "cpu",
            "texts": [
                {
                    "params": {
                        "temperature": 0.0,
                        "top_k": 0,
                        "top_p": 1.0,
                        "min_p": 0.0,
                        "seed": 3,
                        "logprobs": None,
                        "filter_order": "top_k_first",
                        "repetition_penalty": 1.0,
                        "frequency_penalty": 0.0,
                        "presence_penalty": 0.0,
                        "logit_bias": None,
                        "allowed_token_ids": None,
                        "bad_words": None,
                        "min_tokens": 0,
                        "stop_token_ids": None,
                    },
                    "token_ids": token_ids,
                    "text": " sat on the mat, and",
                }
            ],
        }


@pytest.mark.usefixtures("docs")
class TestCompare:
    LABELS = (
        "greedy",
        "temperature 0.7, top-k 40, top-p 0.9",
        "temperature 1",
        "temperature 1.5",
        "temperature 1.5, min-p 0.1",
    )

    @pytest.mark.slow
    def test_the_texts_are_those_of_single_runs(self):
        texts = json.loads(generate("A class is", "--compare", "--seed", "1", "--json").stdout)["texts"]
        single = [
            ["--temperature", "0"],
            ["--temperature", "0.7", "--top-k", "40", "--top-p", "0.9"],
            ["--temperature", "1"],
            ["--temperature", "1.5"],
            ["--temperature", "1.5", "--min-p", "0.1"],
        ]
        assert [f"A class is{t['text']}\n" for t in texts] == [
            text("A class is", "--seed", "1", *options) for options in single
        ]

    @pytest.mark.slow
    def test_the_settings_of_the_command_line_come_first(self):
        options = ("--temperature", "0.3", "--top-p", "0.5", "--seed", "1")
        output = json.loads(generate("A class is", "--compare", *options, "--json").stdout)
        params = [t["params"] for t in output["texts"]]
        assert (params[0]["temperature"], params[0]["top_p"], len(params)) == (0.3, 0.5, 6)
        assert {p["seed"] for p in params} == {1}

    def test_the_texts_stand_side_by_side_under_their_settings(self):
        lines = text("A class is", "--compare", "--seed", "1", "-n", "12").splitlines()
        assert max(map(len, lines)) <= 100
        headers = " ".join(line for line in lines if "temperature" in line or "greedy" in line)
        assert all(label.split(",")[0] in headers for label in self.LABELS)
        assert sum(line.count("A class is") for line in lines) == 5
        assert any(line.count("A class is") == 3 for line in lines)

    def test_all_texts_are_there_in_full(self):
        output = json.loads(generate("A class is", "--compare", "--seed", "1", "-n", "9", "--json").stdout)
        printed = text("A class is", "--compare", "--seed", "1", "-n", "9")
        for entry in output["texts"]:
            assert all(word in printed for word in entry["text"].split())


@pytest.mark.parametrize("option", ["--json", "--compare"])
def test_streaming_does_not_go_with_json_or_compare(option):
    result = call("generate", "x", "--stream", option)
    assert (bool(result.stdout), result.exit_code) == (option == "--json", 2)
    assert result.stderr.endswith(
        "'--stream' prints one text as it is drawn. Leave out --json and --compare, or --stream.\n"
    )


def test_the_help_has_a_line_for_each_example():
    lines = [line.strip() for line in call("generate", "--help").stdout.splitlines()]
    assert 'tokendraw generate "A class is" --compare' in lines
    assert 'tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9' in lines


def test_every_token_of_the_vocabulary_can_be_printed():
    assert all(STORY.decode([i], after=UNKNOWN) for i in range(len(STORY.vocabulary)))


class TestWrapping:
    def test_a_word_that_does_not_fit_goes_to_the_next_line(self):
        wrap = Wrapper(12)
        assert (
            "".join(map(wrap, ["The", " cat", " sat", " on", " the", " mat", "."]))
            == "The cat\nsat on the\nmat."
        )

    def test_text_in_one_piece_wraps_the_same(self):
        assert Wrapper(12)("The cat sat on the mat.") == "The cat\nsat on the\nmat."

    def test_a_paragraph_begins_at_the_left(self):
        wrap = Wrapper(12)
        assert wrap("The cat") + wrap("\n\n") + wrap("sat") + wrap(" on") == "The cat\n\nsat on"

    def test_a_word_longer_than_a_line_is_not_broken(self):
        assert Wrapper(8)("a __init_subclass__ b") == "a\n__init_subclass__\nb"
