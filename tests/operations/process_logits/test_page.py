"""docs/logits-processing.md is true: its step runs, and its table is the order of edits."""

import dataclasses

import pages
from tokendraw import SamplingParams

PAGE = pages.text_of("docs/logits-processing.md")
SOURCE, PREEMPTION = pages.blocks(PAGE, "python")


def test_its_step_runs():
    names = {}
    exec(SOURCE, names)
    slots, chains = names["slots"], names["chains"]
    assert names["sampled"].token_ids.shape == (2,)
    assert chains.token_ids.shape == (2, 3)
    emitted = (chains.token_ids[1] >= 0).sum()
    assert slots.tables.num_tokens[[7, 0]].tolist() == [0, 2 + emitted]  # one prompt token, one sampled
    assert slots.tables.history[0, 1] == names["sampled"].token_ids[1]


def test_its_preempted_request_comes_back():
    names = {}
    exec(SOURCE + PREEMPTION, names)
    tables = names["slots"].tables
    assert (int(tables.num_prompt[5]), tables.history[5, :6].tolist()) == (3, [1, 2, 3, 17, 4, 8])


def test_its_table_names_fields_of_parameters():
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    rows = [cells[0].split("`")[1] for cells in pages.rows(PAGE, 2) if cells[0].startswith("`")]
    assert rows[0] == "bitmask"
    assert rows[1:] == [
        "allowed_token_ids",
        "bad_words",
        "min_tokens",
        "thinking_budget",
        "logit_bias",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "penalty_last_n",
        "dry_multiplier",
    ]
    assert set(rows[1:]) <= fields
