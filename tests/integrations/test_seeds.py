"""Seeds for whole calls and for pipelines: listed, derived from a base seed, asked of a callable, in the settings."""

import hashlib

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

from transformers import GenerationConfig, pipeline

import tokendraw_transformers
from tokendraw_transformers import SeedsUnusedWarning, derived_seed, generate
from transformers_models import PAD, STEPS, byte_tokenizer, draw, model_of, prompts


@pytest.fixture
def llama():
    return model_of("llama")


def test_a_derived_seed_is_that_of_its_definition():
    words = [(-3) % 2**64, 1, 5, 900]
    text = b"".join(word.to_bytes(8, "little") for word in words)
    assert derived_seed(-3, [5, 900], repeat=1) == int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    assert derived_seed(7, [5, 900]) == 9646916436847246949
    assert derived_seed(2**64 - 1, [1]) == derived_seed(-1, [1])


@pytest.mark.slow
def test_a_base_seed_gives_each_row_the_seed_of_its_prompt(llama):
    ids = prompts(4)[[0, 1, 2, 1]]
    whole = draw(llama, ids, seeds=7)
    each = [derived_seed(7, row.tolist(), repeat) for row, repeat in zip(ids, [0, 0, 0, 1], strict=True)]
    assert torch.equal(whole, draw(llama, ids, seeds=each))
    for row in range(3):  # whatever the batch
        assert torch.equal(draw(llama, ids[row : row + 1], seeds=7), whole[row : row + 1])
    assert not torch.equal(whole[1], whole[3])  # the second row of one prompt
    assert not torch.equal(whole, draw(llama, ids, seeds=8))


def test_padding_is_no_part_of_a_prompt_and_copies_differ(llama):
    longer = torch.nn.functional.pad(prompts(2), (3, 0), value=PAD)
    mask = (longer != PAD).long()
    whole = draw(llama, prompts(2), seeds=7)
    assert torch.equal(draw(llama, longer, attention_mask=mask, seeds=7)[:, 3:], whole)
    copies = draw(llama, prompts(2), seeds=7, num_return_sequences=2)
    assert torch.equal(copies[::2], whole)
    assert not torch.equal(copies[1::2], whole)


def test_rows_of_embeddings_are_distinguished_by_their_index(llama):
    embeds = llama.get_input_embeddings()(prompts(2))
    seeds = [derived_seed(7, [], 0), derived_seed(7, [], 1)]
    expected = draw(llama, None, inputs_embeds=embeds, seeds=seeds)
    assert torch.equal(draw(llama, None, inputs_embeds=embeds, seeds=7), expected)


def test_a_callable_is_asked_for_the_seed_of_each_row(llama):
    asked = []

    def seeds(row):
        asked.append((row, row.prompt_ids, row.repeat))
        return None if row == 3 else 100 + row

    ids = prompts(2)
    result = draw(llama, ids, seeds=seeds, num_return_sequences=2)
    assert torch.equal(result[:3], draw(llama, ids, seeds=[100, 101, 102, 5], num_return_sequences=2)[:3])
    first, second = (tuple(row.tolist()) for row in ids)
    assert asked == [(0, first, 0), (1, first, 1), (2, second, 0), (3, second, 1)]


@pytest.mark.parametrize(
    "seeds", [(1, 2), range(1, 3), torch.tensor([1, 2])], ids=["tuple", "range", "tensor"]
)
@pytest.mark.fast_first
def test_every_kind_of_list_of_integers_is_one(llama, seeds):
    assert torch.equal(draw(llama, prompts(2), seeds=seeds), draw(llama, prompts(2), seeds=[1, 2]))


@pytest.mark.slow
def test_the_settings_may_hold_the_adapters_arguments(llama):
    expected = draw(llama, prompts(2), seeds=[1, 2], logprobs=0, return_dict_in_generate=True)
    config = GenerationConfig(
        seeds=[1, 2],
        logprobs=0,
        sampler="native",
        do_sample=True,
        max_new_tokens=STEPS,
        return_dict_in_generate=True,
    )
    result = llama.generate(prompts(2), generation_config=config, custom_generate=generate)
    assert torch.equal(result.sequences, expected.sequences)
    assert torch.equal(result.logprobs, expected.logprobs)
    arguments = llama.generate(prompts(2), generation_config=config, seeds=[3, 4], custom_generate=generate)
    assert torch.equal(arguments.sequences, draw(llama, prompts(2), seeds=[3, 4]))


UNUSED = (
    "'seeds' need do_sample=True, found False: greedy decoding draws nothing. Pass do_sample=True, or leave "
    "out seeds."
)


@pytest.mark.parametrize(
    "arguments", [{"seeds": [1, None]}, {"seeds": 7}, {"generation_config": {"seeds": 7}}]
)
def test_seeds_of_greedy_decoding_are_warned_of(llama, arguments, monkeypatch):
    settings = {"do_sample": False, "max_new_tokens": STEPS}
    if "generation_config" in arguments:
        arguments = {"generation_config": GenerationConfig(**arguments["generation_config"], **settings)}
        settings = {}
    with pytest.warns(SeedsUnusedWarning) as result:
        greedy = llama.generate(prompts(2), custom_generate=generate, **arguments, **settings)
    assert [str(warning.message) for warning in result] == [UNUSED]
    assert result[0].filename == __file__
    assert torch.equal(greedy, draw(llama, prompts(2), do_sample=False))
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    with pytest.raises(SeedsUnusedWarning) as error:
        llama.generate(prompts(2), custom_generate=generate, **arguments, **settings)
    assert str(error.value) == f"{UNUSED} TOKENDRAW_STRICT=1 makes this warning an error."


def test_no_seeds_are_no_reason_to_warn(llama):
    draw(llama, prompts(2), do_sample=False, seeds=[None, None])  # warnings are errors here


SAMPLING = {"temperature": 0.8, "top_k": 50}  # a pipeline has a temperature of its own
TEXTS = ["Why is the sky blue?", "Write a haiku.", "a", "Grüße"]


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.fast_first
def test_a_pipeline_takes_a_base_seed_whatever_its_batches(llama, batch_size):
    pipe = pipeline(
        "text-generation",
        model=llama,
        tokenizer=byte_tokenizer(),
        batch_size=batch_size,
        custom_generate=generate,
        seeds=7,
    )
    out = pipe(TEXTS, do_sample=True, max_new_tokens=STEPS, **SAMPLING, return_tensors=True)
    for text, (result,) in zip(TEXTS, out, strict=True):
        ids = byte_tokenizer()(text)["input_ids"]
        alone = draw(llama, torch.tensor([ids]), seeds=[derived_seed(7, ids)], **SAMPLING)
        assert result["generated_token_ids"][-len(alone[0]) :] == alone[0].tolist()


def test_a_pipeline_takes_a_callable_of_the_row(llama):
    known = {
        tuple(byte_tokenizer()(text)["input_ids"]): seed for text, seed in zip(TEXTS, [5, 6], strict=False)
    }
    pipe = pipeline("text-generation", model=llama, tokenizer=byte_tokenizer(), custom_generate=generate)
    out = pipe(
        TEXTS[:2],
        do_sample=True,
        max_new_tokens=STEPS,
        **SAMPLING,
        seeds=lambda row: known[row.prompt_ids],
        return_tensors=True,
    )
    for (prompt, seed), (result,) in zip(known.items(), out, strict=True):
        alone = draw(llama, torch.tensor([prompt]), seeds=[seed], **SAMPLING)
        assert result["generated_token_ids"][-len(alone[0]) :] == alone[0].tolist()


def test_a_row_counts_as_its_index():
    row = tokendraw_transformers.Row.of(3, (1, 2), 0)
    assert row == 3
    assert isinstance(row, int)
    assert 100 + row == 103
