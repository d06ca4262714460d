"""``tokendraw generate`` with penalties, biases, bad words and masks: each is seen in the text, drafts or no drafts."""

import functools
import itertools
import json

import pytest
import torch

from command_line import DRAWN_BY_NATIVE, NATIVE_ON_CPU, call
from tokendraw import SamplingParams
from tokendraw.cli.demo import built_in_model as _built_in_model
from tokendraw.cli.demo.corpus import documentation
from tokendraw.cli.demo.ngram import NGramModel
from tokendraw.cli.demo.wishes import packed
from tokendraw.providers import load as _load
from tokendraw.providers.load import load as real_load
from tokendraw_testing import reference

STORY_TEXT = ["The cat sat on the mat, and the dog slept.", "The cat sat on the mat, and the bird sang."]
STORY = NGramModel(STORY_TEXT)
GREEDY = ("The cat", "--temperature", "0", "-n", "12")
SEED = 5
EDITED_BY_NATIVE = "edited by native on cpu: best available, priority 0\n"
EVERYTHING = (
    *("--repetition-penalty", "1.3", "--frequency-penalty", "0.7", "--presence-penalty", "-0.2"),
    *("--logit-bias", "object=3", "--logit-bias", ",=-1.5", "--bad-words", "is a", "--bad-words", "class"),
    *("--allow", r"[a-z]+|[.,]", "--stop", ".", "--min-tokens", "18"),
)


@functools.cache
def documentation_model(order=4):
    return NGramModel(documentation(), order=order)


@pytest.fixture
def docs(monkeypatch):
    monkeypatch.setattr(_built_in_model, "language_model", documentation_model)
    monkeypatch.setattr(_built_in_model, "draft_model", lambda: documentation_model(2))


@pytest.fixture
def story(monkeypatch):
    monkeypatch.setattr(_built_in_model, "language_model", lambda: STORY)
    monkeypatch.setattr(_built_in_model, "draft_model", lambda: NGramModel(STORY_TEXT, order=2))


def generate(*arguments):
    return call("generate", *NATIVE_ON_CPU, *arguments)


def entry(*arguments):
    result = generate(*arguments, "--json")
    assert (result.stderr, result.exit_code) == ("", 0)
    (found,) = json.loads(result.stdout)["texts"]
    return found


def words(*arguments):
    return [STORY.vocabulary[i] for i in entry(*arguments)["token_ids"]]


def expected(edit, model=STORY, prompt="The cat", count=12, **sampling):
    """The words that float64 draws where ``edit(row, prompt, output)`` changes each row of logits in Python."""
    known, output = model.encode(prompt), []
    params = SamplingParams(**sampling)
    for _ in range(count):
        (logits,) = model.logits([known + output])
        row = edit([float(x) for x in logits], known, output)
        prepared = reference.prepare(torch.tensor(row).numpy(), params)
        position = len(known) + len(output) - 1
        output.append(reference.draw(prepared, params.seed or 0, position, "fp32")[0])
    return [model.vocabulary[i] for i in output]


def penalised(repetition=1.0, frequency=0.0, presence=0.0):
    def edit(row, prompt, output):
        for i in {*prompt, *output}:
            row[i] = row[i] / repetition if row[i] > 0 else row[i] * repetition
        for i in set(output):
            row[i] -= frequency * output.count(i) + presence
        return row

    return edit


def unedited(row, prompt, output):
    return row


@pytest.mark.usefixtures("story")
class TestEachOption:
    @pytest.mark.parametrize(
        ("options", "penalties"),
        [
            (("--repetition-penalty", "1.7"), {"repetition": 1.7}),
            (("--frequency-penalty", "1.5"), {"frequency": 1.5}),
            (("--presence-penalty", "2"), {"presence": 2.0}),
            (
                ("--repetition-penalty", "1.2", "--frequency-penalty", "0.5", "--presence-penalty", "0.25"),
                {"repetition": 1.2, "frequency": 0.5, "presence": 0.25},
            ),
        ],
    )
    @pytest.mark.fast_first
    def test_penalties_draw_what_their_formulas_say(self, options, penalties):
        for option, sampling in (
            (("--temperature", "0"), {"temperature": 0.0}),
            (("--seed", SEED), {"seed": SEED}),
        ):
            found = words("The cat", "-n", "40", *option, *options)
            assert found == expected(penalised(**penalties), count=40, **sampling)
            assert found != expected(unedited, count=40, **sampling)

    def test_a_bias_is_added_to_the_logit_of_its_word(self):
        dog, the = STORY.ids("dog the")

        def edit(row, prompt, output):
            row[dog] += 2.5
            row[the] -= 4.0
            return row

        found = words(*GREEDY, "--logit-bias", "dog=2.5", "--logit-bias", "the=-4")
        assert found == expected(edit, temperature=0.0) != expected(unedited, temperature=0.0)

    def test_bad_words_are_not_drawn_one_after_the_other(self):
        on, the, sang = STORY.ids("on the sang")

        def edit(row, prompt, output):
            row[sang] = -torch.inf
            if output[-1:] == [on]:
                row[the] = -torch.inf
            return row

        found = words(*GREEDY, "--bad-words", "on the", "--bad-words", "sang")
        assert found == expected(edit, temperature=0.0)
        assert "on" in found
        assert ("on", "the") in itertools.pairwise(expected(unedited, temperature=0.0))
        assert ("on", "the") not in itertools.pairwise(found)

    def test_only_words_that_match_as_a_whole_are_allowed(self):
        allowed = {i for i, word in enumerate(STORY.vocabulary) if len(word) == 3 and word.islower()}

        def edit(row, prompt, output):
            return [x if i in allowed else -torch.inf for i, x in enumerate(row)]

        found = words("The cat", "--seed", SEED, "-n", "12", "--allow", "[a-z]{3}")
        assert found == expected(edit, seed=SEED)
        assert set(found) <= {"the", "cat", "sat", "mat", "and", "dog"}

    def test_a_stop_word_ends_the_text(self):
        plain = words(*GREEDY)
        assert words(*GREEDY, "--stop", ",") == plain[: plain.index(",") + 1]
        assert words(*GREEDY, "--stop", "dog", "--stop", "on") == plain[: plain.index("on") + 1]

    def test_stop_words_are_held_back_until_there_are_enough_tokens(self):
        (comma,) = STORY.ids(",")

        def edit(row, prompt, output):
            if len(output) < 7:
                row[comma] = -torch.inf
            return row

        whole = expected(edit, seed=SEED, count=40)
        end = whole.index(",") + 1
        found = words("The cat", "--seed", SEED, "-n", "40", "--stop", ",", "--min-tokens", "7")
        assert found == whole[:end]
        assert len(found) > 7 > expected(unedited, seed=SEED, count=40).index(",")

    def test_words_that_the_model_does_not_know_may_stand_in_the_prompt(self):
        found = words("A zebra sat on the", "--temperature", "0", "-n", "1", "--repetition-penalty", "1.1")
        assert found == ["mat"]


@pytest.mark.usefixtures("story")
class TestSaid:
    def test_who_edits_is_said_on_stderr(self):
        result = generate(*GREEDY, "--presence-penalty", "1")
        assert (result.stderr, result.exit_code) == (DRAWN_BY_NATIVE + EDITED_BY_NATIVE, 0)

    def test_json_has_who_edits_and_what_was_asked(self):
        result = generate(*GREEDY, "--logit-bias", "dog=2", "--bad-words", "on the", "--stop", ".", "--json")
        found = json.loads(result.stdout)
        dog, on, the, stop = STORY.ids("dog on the .")
        assert found["process_resolution"]["operation"] == "process_logits"
        assert found["process_resolution"]["chosen"] == "native"
        params = found["texts"][0]["params"]
        assert params["logit_bias"] == {str(dog): 2.0}
        assert (params["bad_words"], params["stop_token_ids"]) == ([[on, the]], [stop])

    def test_streaming_prints_the_same_text(self):
        options = (*GREEDY, "--presence-penalty", "1", "--stop", ".", "--quiet")
        assert generate(*options, "--stream").stdout == generate(*options, "--no-stream").stdout

    def test_without_these_options_nobody_is_loaded_to_edit(self, monkeypatch):
        loaded = []

        def load(operation, *arguments, **options):
            loaded.append(operation)
            return real_load(operation, *arguments, **options)

        monkeypatch.setattr(_load, "load", load)
        assert generate(*GREEDY, "--stop", ".", "--repetition-penalty", "1").stderr == DRAWN_BY_NATIVE
        assert loaded == []
        generate(*GREEDY, "--presence-penalty", "1")
        assert loaded == ["process_logits"]


@pytest.mark.usefixtures("docs")
class TestDrafts:
    @pytest.mark.parametrize("sampling", [("--temperature", "0"), ("--top-p", "0.9")])
    @pytest.mark.slow
    def test_coupled_the_text_is_that_without_drafts(self, sampling):
        for seed in (1, 2, 3):
            asked = ("A class is", *EVERYTHING, *sampling, "--seed", seed, "-n", 24)
            plain = entry(*asked)
            for k in (1, 4):
                found = entry(*asked, "--speculate", k, "--verify-mode", "coupled")
                assert found["token_ids"] == plain["token_ids"], (seed, k)
                tokens = found["speculation"]["evaluations"] + sum(found["speculation"]["accepted"])
                assert tokens == len(plain["token_ids"])

    def test_drafts_are_accepted_under_a_mask(self):
        found = entry("A class is", "--allow", "[a-z]+", "--seed", "1", "-n", 40, "--speculate", 4)
        assert sum(found["speculation"]["accepted"]) > 8

    def test_rejection_draws_nothing_that_is_forbidden(self):
        model = documentation_model()
        found = entry("A class is", *EVERYTHING, "--seed", "1", "-n", 30, "--speculate", 4)["token_ids"]
        drawn = [model.vocabulary[i] for i in found]
        assert all((word.isalpha() and word.islower()) or word in ".," for word in drawn)
        assert "class" not in drawn
        assert "." not in drawn[:18]
        assert "." not in drawn[:-1]
        assert ("is", "a") not in itertools.pairwise(drawn)

    def test_greedy_rejection_is_the_greedy_text(self):
        asked = ("A class is", *EVERYTHING, "--temperature", "0", "-n", 24)
        assert entry(*asked, "--speculate", 4)["token_ids"] == entry(*asked)["token_ids"]

    def test_compared_texts_are_edited_alike(self):
        options = ("A class is", "--seed", "1", "-n", "9", "--bad-words", "a", "--json")
        texts = json.loads(generate(*options, "--compare").stdout)["texts"]
        (banned,) = documentation_model().ids("a")
        assert len(texts) == 5
        assert all(t["params"]["bad_words"] == [[banned]] for t in texts)
        assert all(banned not in t["token_ids"] for t in texts)
        (alone,) = json.loads(generate(*options).stdout)["texts"]
        assert alone in texts


@pytest.mark.usefixtures("story")
class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                ("--bad-words", "the zebra"),
                "'--bad-words' needs words that the model knows, as they are written there, found 'zebra'.",
            ),
            (
                ("--logit-bias", "Dog=1"),
                "'--logit-bias' needs words that the model knows, as they are written there, found 'Dog'.",
            ),
            (("--bad-words", " "), "'--bad-words' needs a word, found ' '."),
            (
                ("--logit-bias", "the cat=1"),
                "'--logit-bias' needs a single word, found 'the cat', which is 2.",
            ),
            (("--logit-bias", "dog"), "'--logit-bias' needs WORD=VALUE with a number, found 'dog'."),
            (("--logit-bias", "dog=x"), "'--logit-bias' needs WORD=VALUE with a number, found 'dog=x'."),
            (("--logit-bias", "dog=inf"), "'--logit-bias' needs finite float32 values, found inf."),
            (
                ("--stop", "zebra"),
                "'--stop' needs words that the model knows, as they are written there, found 'zebra'.",
            ),
            (
                ("--allow", "[a"),
                "'--allow' needs a regular expression, found '[a': unterminated character set at position 0.",
            ),
            (
                ("--allow", "zebra"),
                "'--allow' needs to match at least one whole word of the model, found none that 'zebra' matches.",
            ),
            (
                ("--repetition-penalty", "0"),
                "'--repetition-penalty' needs a finite float32 > 0 (1: off), found 0.0.",
            ),
            (
                ("--frequency-penalty", "3"),
                "'--frequency-penalty' needs a number in [-2, 2] (0: off), found 3.0.",
            ),
            (
                ("--presence-penalty", "nan"),
                "'--presence-penalty' needs a number in [-2, 2] (0: off), found nan.",
            ),
            (
                ("--min-tokens", "-1", "--stop", "."),
                "'--min-tokens' needs an integer >= 0 (0: off), found -1.",
            ),
        ],
    )
    def test_a_value_that_makes_no_sense_is_a_usage_error_of_one_line(self, options, message):
        result = generate("x", *options)
        assert (result.stdout, result.stderr, result.exit_code) == ("", message + "\n", 2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                ("--min-tokens", "4"),
                "'--min-tokens' holds back the words of --stop, found none. Add --stop WORD, or leave it out.",
            ),
            (
                ("--model", ".", "--bad-words", "a"),
                "'--bad-words' is for words of the n-gram model, found --model. Leave out one of them.",
            ),
        ],
    )
    def test_options_that_do_not_fit_each_other_are_usage_errors(self, options, message):
        result = generate("x", *options)
        assert (result.stdout, result.exit_code) == ("", 2)
        assert result.stderr.endswith(f"Error: {message}\n")


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 70])
def test_a_mask_has_a_bit_for_each_id(vocab_size):
    ids = [i for i in range(vocab_size) if i % 3 == 0 or i % 32 == 31]
    mask = packed(ids, vocab_size)
    assert (mask.dtype, mask.shape) == (torch.int32, (-(-vocab_size // 32),))
    bits = [(word >> bit) & 1 for word in mask.tolist() for bit in range(32)]
    assert [i for i, bit in enumerate(bits) if bit] == ids
