"""``tokendraw generate --speculate``: the text is what it is without, and what is said about the drafts is so."""

import functools
import json

import numpy as np
import pytest
import torch

import tokendraw
from command_line import NATIVE_ON_CPU, call
from fake_dists import EVERYTHING, fake_dists, plugin
from goodness_of_fit import FALSE_ALARM, chi_square
from tokendraw import SamplerOutput, SamplingParams, VerifyOutput
from tokendraw.cli.demo import built_in_model as _built_in_model
from tokendraw.cli.demo.corpus import documentation
from tokendraw.cli.demo.generation import draw_tokens
from tokendraw.cli.demo.ngram import NGramModel
from tokendraw.cli.demo.speculation import Speculation, Tally, _ordinal
from tokendraw_testing import reference
from tokendraw_testing.reference_walk import distribution

STORY = ["The cat sat on the mat, and the dog slept.", "The cat sat on the mat, and the bird sang."]
VERIFIED_BY_NATIVE = "verified by native on cpu: asked for by --sampler\n"
FILTERED = ("--temperature", "0.7", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01")
MODES = ("rejection", "coupled")


@functools.cache
def documentation_model(order=4):
    return NGramModel(documentation(), order=order)


class Remembering:
    """A model that computes no history twice."""

    def __init__(self, order):
        self.model = NGramModel(STORY, order=order)
        self.rows = {}

    def logits(self, sequences):
        return torch.stack([self.row(tuple(s[len(s) - self.model.order + 1 :])) for s in sequences])

    def row(self, history):
        if history not in self.rows:
            (self.rows[history],) = self.model.logits([history])
        return self.rows[history]


@functools.cache
def story_model(order):
    return Remembering(order)


@pytest.fixture
def docs(monkeypatch):
    monkeypatch.setattr(_built_in_model, "language_model", documentation_model)
    monkeypatch.setattr(
        _built_in_model, "draft_model", lambda: documentation_model(_built_in_model.DRAFT_ORDER)
    )


@pytest.fixture
def story(monkeypatch):
    monkeypatch.setattr(_built_in_model, "language_model", lambda: NGramModel(STORY))
    monkeypatch.setattr(_built_in_model, "draft_model", lambda: NGramModel(STORY, order=2))


@pytest.fixture(scope="module")
def native():
    return tokendraw.load_sampler("native", device="cpu")


def generate(*arguments):
    return call("generate", *NATIVE_ON_CPU, *arguments)


def text(*arguments):
    result = generate(*arguments, "--quiet")
    assert (result.stderr, result.exit_code) == ("", 0)
    return result.stdout


def speculation(sampler, mode, *, drafts=4, models=documentation_model):
    return Speculation(target=models(4), draft=models(2), sampler=sampler, drafts=drafts, mode=mode)


def decoded(how, prompt, params, count):
    """The tokens of each setting, and the tallies."""
    tallies = []
    steps = list(how.draw_tokens(prompt, params, count, tallies))
    return [[token for step in steps for token in step[row]] for row in range(len(params))], tallies


@pytest.mark.usefixtures("docs")
class TestText:
    @pytest.mark.slow
    @pytest.mark.parametrize("options", [("--temperature", "0"), (), FILTERED])
    def test_coupled_it_is_that_of_plain_sampling_to_the_letter(self, options):
        for seed in range(50):
            asked = ("The import statement", *options, "--seed", seed, "-n", 8)
            assert text(*asked, "--speculate", 4, "--verify-mode", "coupled") == text(*asked), seed

    @pytest.mark.slow
    @pytest.mark.parametrize(("drafts", "top_p", "count"), [(1, 1.0, 30), (4, 0.9, 30), (9, 1.0, 15)])
    def test_coupled_texts_that_are_drawn_beside_each_other_are_too(self, native, drafts, top_p, count):
        prompt = documentation_model().encode("A class is")
        settings = [SamplingParams(temperature=0.9, top_p=top_p, seed=seed) for seed in range(50)]
        plain = zip(*draw_tokens(documentation_model(), native, prompt, settings, count), strict=True)
        found, _ = decoded(speculation(native, "coupled", drafts=drafts), prompt, settings, count)
        assert found == [list(row) for row in plain]

    @pytest.mark.fast_first
    @pytest.mark.parametrize("prompt", ["The import statement", "A class is", "An exception", ""])
    def test_greedy_it_is_the_greedy_text_in_both_modes(self, prompt):
        greedy = (prompt, "--temperature", "0", "-n", "40")
        texts = {
            text(*greedy, "--speculate", k, "--verify-mode", mode, *seed)
            for mode in MODES
            for k in (1, 4)
            for seed in ((), ("--seed", "3"))
        }
        assert texts == {text(*greedy)}

    @pytest.mark.fast_first
    @pytest.mark.parametrize("mode", MODES)
    def test_a_seed_gives_the_same_in_every_run_and_no_seed_another(self, mode):
        asked = ("The import statement", "--speculate", "4", "--verify-mode", mode)
        assert text(*asked, "--seed", "7") == text(*asked, "--seed", "7") != text(*asked, "--seed", "8")
        assert text(*asked) != text(*asked)

    @pytest.mark.fast_first
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("count", [1, 2, 4, 5, 6, 23])
    def test_it_has_as_many_tokens_as_were_asked_for_and_none_is_drawn_in_vain(self, native, mode, count):
        prompt = documentation_model().encode("A class is")
        settings = [SamplingParams(seed=1), SamplingParams(temperature=0), SamplingParams(seed=2, top_k=3)]
        found, tallies = decoded(speculation(native, mode), prompt, settings, count)
        for tokens, tally in zip(found, tallies, strict=True):
            assert len(tokens) == tally.tokens == count
            assert count == tally.evaluations + sum(tally.accepted)
            assert len(tally.drafted) == min(4, count - 1)
            assert 0 < tally.evaluations <= count

    @pytest.mark.slow
    def test_rejection_is_the_default(self):
        asked = ("A class is", "--seed", "1", "--speculate", "4")
        assert text(*asked) == text(*asked, "--verify-mode", "rejection") != text(*asked[:-2])

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.fast_first
    def test_texts_beside_each_other_are_those_of_single_runs(self, mode):
        speculate = ("--speculate", "3", "--verify-mode", mode, "--seed", "1", "-n", "30", "--json")
        found = json.loads(generate("A class is", "--compare", *speculate).stdout)["texts"]
        assert len(found) == 5
        for entry in found:
            names = ("temperature", "top_k", "top_p", "min_p")
            options = [w for n in names for w in (f"--{n.replace('_', '-')}", entry["params"][n])]
            (single,) = json.loads(generate("A class is", *options, *speculate).stdout)["texts"]
            assert single == entry


SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.5, top_k=6),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.02),
)


@pytest.mark.fast_first
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("params", SETTINGS, ids=["plain", "top-k", "top-p and min-p"])
def test_each_token_is_distributed_as_the_target_says(native, params, mode):
    """Each of the five checks, which count 3000 texts, calls a correct sampler wrong with a probability of 1e-7."""
    prompt, texts, count = story_model(4).model.encode("The cat"), 3000, 5
    settings = [
        SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed=s)
        for s in range(texts)
    ]
    found, tallies = decoded(speculation(native, mode, drafts=3, models=story_model), prompt, settings, count)
    accepted = sum(sum(tally.accepted) for tally in tallies) / sum(sum(tally.drafted) for tally in tallies)
    assert 0.15 < accepted < 0.95, "or there is nothing to test"
    drawn = np.array(found)
    for place, expected in enumerate(marginals(prompt, params, count)):
        assert chi_square(drawn[:, place], expected) > FALSE_ALARM, place


def marginals(prompt, params, count):
    """The distribution of each token after the prompt, by the reference in float64."""
    histories = {tuple(prompt[-3:]): 1.0}
    for _ in range(count):
        following, marginal = {}, 0.0
        for history, mass in histories.items():
            p = mass * probabilities(history, params)
            marginal = marginal + p
            for token in p.nonzero()[0].tolist():
                after = (*history[1:], token)
                following[after] = following.get(after, 0.0) + p[token]
        yield marginal
        histories = following


@functools.cache
def probabilities(history, params):
    return distribution(reference.prepare(story_model(4).row(history).numpy(), params))


@pytest.mark.slow
@pytest.mark.parametrize("seeded", [True, False])
def test_coupled_drafts_share_the_noise_of_the_target(native, seeded):
    """What two independent draws from the two models agree in is far less."""
    prompt = documentation_model().encode("The import statement")
    settings = [SamplingParams(seed=s if seeded else None) for s in range(20)]
    how = speculation(native, "coupled", drafts=1)
    _, tallies = decoded(how, prompt, settings, 40)
    agreed = sum(sum(t.accepted) for t in tallies) / sum(sum(t.drafted) for t in tallies)
    contexts = [
        prompt + tokens[:n] for tokens in decoded(how, prompt, settings[:5], 40)[0] for n in range(40)
    ]
    p, q = (model.logits(contexts).double().exp() for model in (how.target, how.draft))
    by_chance = (p * q).sum(-1).mean().item()
    at_most = torch.minimum(p, q).sum(-1).mean().item()
    assert 3 * by_chance < agreed < at_most + 0.1


class Recorder:
    """Draws token 1 and accepts a single draft."""

    device = torch.device("cpu")

    def __init__(self):
        self.calls = []

    def draft(self, logits, metadata):
        self.calls.append(("draft", list(logits.shape)[:1], metadata.positions.tolist()))
        ones = torch.ones(len(logits), dtype=torch.int64)
        return SamplerOutput(ones, ones.bool())

    def sample(self, logits, metadata):
        output = self.draft(logits, metadata)
        self.calls[-1] = ("sample", *self.calls[-1][1:])
        return output

    def verify(self, target_logits, drafts, metadata, *, mode):
        self.calls.append((mode, drafts.num_drafts, metadata.positions.tolist(), drafts.kind))
        accepted = torch.tensor([min(1, n) for n in drafts.num_drafts])
        tokens = torch.tensor([[1] * n + [2] + [-1] * (drafts.max_drafts - n) for n in accepted.tolist()])
        return VerifyOutput(tokens, accepted.int(), accepted >= 0)


@pytest.mark.parametrize(
    ("mode", "draws", "kind"), [("rejection", "draft", "logits"), ("coupled", "sample", "chosen")]
)
def test_drafts_are_drawn_at_the_positions_that_verify_them(mode, draws, kind):
    prompt = story_model(4).model.encode("The cat")
    recorder = Recorder()
    how = speculation(recorder, mode, drafts=3, models=story_model)
    found, (tally,) = decoded(how, prompt, [SamplingParams(seed=1)], 5)
    assert (len(prompt), found) == (3, [[1, 2, 1, 2, 2]])
    assert recorder.calls == [
        *[(draws, [1], [2 + place]) for place in range(3)],
        (mode, (3,), [2], kind),
        *[(draws, [1], [4 + place]) for place in range(2)],
        (mode, (2,), [4], kind),
        (mode, (0,), [6], "chosen"),
    ]
    assert tally == Tally(evaluations=3, tokens=5, drafted=[2, 2, 1], accepted=[2, 0, 0])


@pytest.mark.usefixtures("story")
class TestPrinting:
    GREEDY = ("--temperature", "0", "-n", "6", "--speculate", "3")
    CONTINUED = ", and the bird sang.\n\nThe\n"
    SAID = (
        "6 tokens from 2 evaluations of the target, where plain sampling takes 6: 3.00 times fewer\n"
        "2.00 drafts accepted a step: 1st 2 of 2 (100 %), 2nd 1 of 2 (50 %), 3rd 1 of 2 (50 %)\n"
    )

    def test_what_speculation_came_to_is_said_on_stderr(self):
        result = generate(", and", *self.GREEDY)
        assert (result.stdout, result.exit_code) == (self.CONTINUED, 0)
        assert result.stderr == VERIFIED_BY_NATIVE + self.SAID

    def test_streaming_prints_the_same(self):
        result = generate(", and", *self.GREEDY, "--stream")
        assert (result.stdout, result.stderr) == (self.CONTINUED, VERIFIED_BY_NATIVE + self.SAID)

    def test_a_single_token_needs_no_draft(self):
        result = generate("The cat", "--temperature", "0", "-n", "1", "--speculate", "3")
        said = "1 token from 1 evaluation of the target, where plain sampling takes 1: 1.00 times fewer\n"
        assert (result.stdout, result.stderr) == ("The cat sat\n", VERIFIED_BY_NATIVE + said)

    def test_beside_each_other_each_has_its_own(self):
        result = generate(", and", *self.GREEDY, "--compare")
        lines = result.stderr.splitlines(keepends=True)
        assert len(lines) == 1 + 2 * 5
        assert [line.removeprefix("greedy: ") for line in lines[:3]] == [
            VERIFIED_BY_NATIVE,
            *self.SAID.splitlines(keepends=True),
        ]
        assert lines[-1].startswith("temperature 1.5, min-p 0.1: ")

    def test_json_has_it_by_text(self):
        result = generate(", and", *self.GREEDY, "--json")
        assert (result.stderr, result.exit_code) == ("", 0)
        found = json.loads(result.stdout)
        assert found["verify_resolution"]["operation"] == "verify"
        assert found["verify_resolution"]["chosen"] == "native"
        (entry,) = found["texts"]
        assert entry["text"] == " the bird sang.\n\nThe"
        assert entry["speculation"] == {
            "mode": "rejection",
            "drafts": 3,
            "evaluations": 2,
            "speedup": 3.0,
            "drafted": [2, 2, 2],
            "accepted": [2, 1, 1],
        }


def test_places_are_counted_in_words():
    found = ", ".join(_ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111))
    assert found == "1st, 2nd, 3rd, 4th, 11th, 12th, 13th, 21st, 102nd, 111th"


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--speculate", "0"), "Invalid value for '--speculate': 0 is not in the range x>=1."),
            (("--speculate", "x"), "Invalid value for '--speculate': 'x' is not a valid integer range."),
            (
                ("--speculate", "4", "--verify-mode", "typical"),
                "Invalid value for '--verify-mode': 'typical' is not one of 'rejection', 'coupled'.",
            ),
            (
                ("--verify-mode", "coupled"),
                "'--verify-mode' says how drafts are verified, found none. Add --speculate, or leave it out.",
            ),
            (
                ("--speculate", "4", "--stream", "--compare"),
                "'--stream' prints one text as it is drawn. Leave out --json and --compare, or --stream.",
            ),
        ],
    )
    def test_what_makes_no_sense_is_a_usage_error(self, options, message):
        result = generate("x", *options)
        assert (result.stdout, result.exit_code) == ("", 2)
        assert result.stderr.endswith(f"Error: {message}\n")

    def test_a_parameter_outside_its_range_is_too(self):
        result = generate("x", "--speculate", "4", "--top-p", "2")
        assert (result.stdout, result.exit_code) == ("", 2)
        assert result.stderr == "'--top-p' needs a number in (0, 1] (1: off), found 2.0.\n"

    @pytest.mark.usefixtures("story")
    def test_a_sampler_that_verifies_nothing_is_refused_before_anything_is_drawn(self, tmp_path, monkeypatch):
        with fake_dists(tmp_path, monkeypatch) as dists:
            dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
            result = call("generate", "The cat", "--device", "cpu", "--sampler", "acme", "--speculate", "4")
        assert (result.stdout, result.exit_code) == ("", 1)
        assert "acme" in result.stderr
        assert "verify" in result.stderr
        assert len(result.stderr.splitlines()) <= 3


def test_a_model_from_disk_is_not_drafted_for(tmp_path):
    result = call("generate", "A", "--speculate", "2", "--model", str(tmp_path))
    assert result.exit_code == 2
    assert "'--speculate' drafts for the n-gram model, found --model. Leave out one of them." in " ".join(
        result.stderr.split()
    )
