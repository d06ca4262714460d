"""Edits that read a request's history, by examples small enough to check by eye; the kit compares all with a model."""

import dataclasses

import pytest
import torch

import call_tables
import pages
import tokendraw
from tokendraw import Drafts, RequestSlots, SamplingParams, VerifyOutput

V, INF = 12, float("inf")


def slots_with(prompt=(), output=(), **fields):
    slots = RequestSlots(2, 240, V)
    slots.add(1, SamplingParams(**fields), prompt, output)
    return slots


def edited(slots, drafts=None, value=0.0, bitmask=None):
    """Edit the rows of slot 1, one behind each of its drafts too; return them as lists."""
    processor = tokendraw.load("process_logits", "native", device="cpu")
    rows, layout = 1 + len(drafts or ()), None if drafts is None else Drafts.from_lists([drafts])
    return processor.process(torch.full((rows, V), value), slots, torch.tensor([1]), bitmask, layout).tolist()


# DRY: the token that would prolong a repetition costs more with each repeated token before it


def costs(tokens, drafts=None, **fields):
    """Return what native subtracts from logits of 0, for a prompt of two tokens and the others as output."""
    slots = slots_with(tokens[:2], tokens[2:], **{"dry_multiplier": 1.0, "dry_base": 2.0} | fields)
    found = [{i: -x for i, x in enumerate(row) if x} for row in edited(slots, drafts)]
    return found if drafts is not None else found[0]


def test_the_worked_examples_of_repetitions_and_thinking_budgets():
    table = call_tables.Table(__file__, "edit_examples.txt")
    assert table.found(lambda: {"costs": costs, "allowed": allowed}) == table.text


# A thinking budget: once it is spent, the ids of the end come one by one, whatever else would be allowed

START, END = [1, 2], [8, 9, 10]


def allowed(prompt=(), output=(), budget=3, end=END, drafts=None, bitmask=None, **fields):
    """Return the ids that rows may draw."""
    slots = slots_with(prompt, output, thinking_budget=(budget, START, end), **fields)
    found = [[i for i, x in enumerate(row) if x > -INF] for row in edited(slots, drafts, bitmask=bitmask)]
    return found if drafts is not None else found[0]


# Placeholders, tokens without an id


@pytest.mark.parametrize("placeholder", [V, V + 5, 2**31 - 1])
def test_add_append_append_verified_and_drafts_treat_a_placeholder_alike(placeholder):
    """``min_tokens`` counts the placeholder, bad words end before it, penalties pass over it."""
    fields = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "min_tokens": 3, "stop_token_ids": [0]}
    fields["bad_words"] = [[5, 6, 8], [6, 9]]

    def forbidden(row):
        return [i for i, x in enumerate(row) if x == -INF]

    assert forbidden(edited(slots_with([1], [5, 6], **fields))[0]) == [0, 8, 9]
    (added,) = edited(slots_with([1], [5, placeholder, 6], **fields), value=1.0)
    assert forbidden(added) == [9]
    assert [added[i] for i in range(V) if i not in (1, 5, 6, 9)] == [1.0] * 8
    assert edited(slots_with([1], [5], **fields), [placeholder, 6], value=1.0)[-1] == added
    assert edited(slots_with([1], [5], **fields), [-1, 6], value=1.0)[-1] == added
    one_by_one, verified = slots_with([1], **fields), slots_with([1], **fields)
    for token in (5, placeholder, 6):
        one_by_one.append([1], [token])
    chain = torch.tensor([[5, placeholder, 6, -1]])
    verified.append_verified([1], VerifyOutput(chain, chain, chain))
    for slots in (one_by_one, verified):
        assert edited(slots, value=1.0) == [added]
        assert slots.tables.history[1, :4].tolist() == [1, 5, placeholder, 6]
    least = RequestSlots(1, 6, 1)
    least.add(0, SamplingParams(frequency_penalty=1.0), [-1, 1, 0], [1, 0])
    assert (least.tables.counts.tolist(), least.tables.num_distinct.tolist()) == ([[17]], [1])


# docs/logits-processing.md

PAGE = pages.text_of("docs/logits-processing.md")


def test_the_page_of_edits_is_true():
    """The step runs, the preempted request comes back, and the table has the order of edits."""
    source, preemption = pages.blocks(PAGE, "python")
    names = {}
    exec(source, names)
    slots, chains = names["slots"], names["chains"]
    assert (names["sampled"].token_ids.shape, chains.token_ids.shape) == ((2,), (2, 3))
    emitted = (chains.token_ids[1] >= 0).sum()
    assert slots.tables.num_tokens[[7, 0]].tolist() == [0, 2 + emitted]  # one prompt token, one sampled
    assert slots.tables.history[0, 1] == names["sampled"].token_ids[1]
    names = {}
    exec(source + preemption, names)
    tables = names["slots"].tables
    assert (int(tables.num_prompt[5]), tables.history[5, :6].tolist()) == (3, [1, 2, 3, 17, 4, 8])
    rows = [cells[0].split("`")[1] for cells in pages.rows(PAGE, 2) if cells[0].startswith("`")]
    assert rows == [*tokendraw.plugin.EDITS]
    assert set(rows[1:]) <= {field.name for field in dataclasses.fields(SamplingParams)}
