"""Ranks that do not agree all raise the same error, at once and again, and no rank waits for another."""

import pytest
import torch

import shard_cases
import tokendraw
from calling import provider_of
from fake_candidates import EVERYTHING
from gloo_world import world
from tokendraw import InvalidParameterError, SamplingMetadata, SamplingParams, VocabShard
from tokendraw.errors.install_commands import NATIVE
from tokendraw.vocab_parallel.agreement import Description, disagreement
from tokendraw.vocab_parallel.shard import Span

SECONDS = 30
SAME = "needs to be the same on every rank"
CALL = "Call every rank with the same batch."
WRONG = {
    "starts later": "'start' of the shard on rank 1 needs to be 1000, where the shard of rank 0 ends, found 1001: a "
    "gap. Let the ranks hold successive ids in rank order.",
    "starts earlier": "'start' of the shard on rank 1 needs to be 1000, where the shard of rank 0 ends, found 999: an "
    "overlap. Let the ranks hold successive ids in rank order.",
    "holds padding everywhere": "the shards need to end at 3000, their 'vocab_size', found 3008 on rank 2: more. Let "
    "the ranks hold all ids and no padding: pass logits[:, :n] where columns are padded.",
    "another V": f"'vocab_size' of the shard {SAME}, found 3000 on rank 0 and 2999 on rank 1. {CALL}",
    "other rows": f"the number of rows of 'logits' {SAME}, found 2 on rank 0 and 3 on rank 1. {CALL}",
    "another filter": f"'facts.max_top_k' of the metadata {SAME}, found 0 on rank 0 and 5 on rank 1. {CALL}",
    "another dtype": f"the dtype of 'logits' {SAME}, found 'float32' on rank 0 and 'bfloat16' on rank 1. {CALL}",
    "integers": "'shard' needs a call that every rank can serve, found on rank 1: 'logits' needs dtype float32, "
    "bfloat16, float16, found torch.int32.",
    "another device": "'shard' needs a call that every rank can serve, found on rank 1: 'logits' needs device cpu, "
    "where the sampler was built, found meta. Move the logits, or load a sampler for meta.",
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_on_one_rank_is_the_same_error_on_every_rank_then_and_later(wrong):
    found = world(3).run(shard_cases.refused, 3, wrong, 1, seconds=SECONDS)
    assert found == [[("InvalidInputError", WRONG[wrong])] * 2] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "name"), [("other seeds", "seed"), ("other temperatures", "temperature")])
def test_metadata_of_other_values_is_found(wrong, name):
    found = world(3).run(shard_cases.refused, 3, wrong, 2, seconds=SECONDS)
    kind, text = found[0][0]
    assert kind == "InvalidInputError"
    assert text.startswith(f"'{name}' of the metadata {SAME}, found 'values of digest ")
    assert text.endswith(f"' on rank 2. {CALL}")
    assert found == [[(kind, text)] * 2] * 3


@pytest.mark.slow
def test_a_sampler_that_cannot_on_one_rank_makes_it_unavailable_on_every_rank():
    found = world(3).run(shard_cases.refused, 3, "a sampler without shards", 0, seconds=SECONDS)
    text = (
        "'shard' needs a call that every rank can serve, found on rank 0: 'acme' cannot serve a vocabulary that is "
        "split over ranks, and no companion serves a part of a call that several ranks make together. Load a sampler "
        f"that can, with tokendraw.Need(vocab_parallel=True) ({NATIVE})."
    )
    assert found == [[("SamplerUnavailableError", text)] * 2] * 3


@pytest.mark.slow
def test_later_calls_may_have_other_rows_and_dtypes_but_not_other_columns():
    for rank, (shapes, error) in enumerate(world(3).run(shard_cases.after_an_agreement, 3)):
        assert shapes == [(4, 3), None, (7, 3), (1, 3)]
        borders = shard_cases.cuts(3, shard_cases.VOCAB_SIZE, 1)
        held = borders[rank + 1] - borders[rank]
        assert error == (
            f"'logits' needs {held} columns, as this shard had when its ranks agreed, found {held + 1}. "
            "Make a new VocabShard on every rank."
        )


def described(start, size, **alike):
    return Description(ids=Span(start, start + size), alike={"the device type of 'logits'": "cpu", **alike})


def test_ranks_of_other_device_types_do_not_agree():
    heard = [described(0, 5), described(5, 5, **{"the device type of 'logits'": "cuda"})]
    expected = f"the device type of 'logits' {SAME}, found 'cpu' on rank 0 and 'cuda' on rank 1. {CALL}"
    assert str(disagreement(heard, 10)) == expected


@pytest.mark.parametrize("shards", [[(0, 10)], [(0, 0), (0, 10)], [(0, 3), (3, 0), (3, 7), (10, 0)]])
def test_successive_shards_agree_whether_or_not_one_is_empty(shards):
    assert disagreement([described(*shard) for shard in shards], 10) is None


def test_ids_that_nobody_holds_at_the_start_or_at_the_end_are_a_gap():
    assert str(disagreement([described(2, 8)], 10)) == (
        "'start' of the shard on rank 0 needs to be 0, where the vocabulary begins, found 2: a gap. "
        "Let the ranks hold successive ids in rank order."
    )
    assert str(disagreement([described(0, 8)], 10)) == (
        "the shards need to end at 10, their 'vocab_size', found 8 on rank 0: a gap. "
        "Let the ranks hold all ids and no padding: pass logits[:, :n] where columns are padded."
    )


class TestOneProcess:
    metadata = SamplingMetadata.from_params([SamplingParams()])
    logits = torch.zeros(1, 5)

    def error(self, sampler, shard):
        with pytest.raises(tokendraw.TokendrawError) as caught:
            sampler.sample(self.logits, self.metadata, shard=shard)
        return type(caught.value).__name__, str(caught.value)

    def test_without_torch_distributed_there_are_no_ranks(self):
        native = tokendraw.load_sampler("native", device="cpu")
        assert self.error(native, VocabShard(0, 5)) == (
            "InvalidInputError",
            "'shard' needs the ranks of a torch.distributed process group, found none. "
            "Call torch.distributed.init_process_group first.",
        )

    def test_a_sampler_without_the_capability_says_so_first(self):
        incapable = provider_of("sample", None, tokendraw.plugin.Capabilities())
        kind, text = self.error(incapable, VocabShard(0, 5))
        assert kind == "SamplerUnavailableError"
        assert text.startswith("'acme' cannot serve a vocabulary that is split over ranks, and no companion ")

    def test_what_is_no_shard_is_refused(self):
        native = tokendraw.load_sampler("native", device="cpu")
        assert self.error(native, (0, 5)) == (
            "InvalidInputError",
            "'shard' needs a tokendraw.VocabShard, found tuple. Pass VocabShard(start, vocab_size).",
        )

    def test_a_shard_needs_integers(self):
        with pytest.raises(InvalidParameterError) as caught:
            VocabShard(0, 5.0)
        expected = "'vocab_size' of VocabShard needs an integer, found 5.0. Pass a number of ids."
        assert str(caught.value) == expected

    def test_a_sampler_that_fails_is_not_replaced(self):
        class Failing:
            def sample(self, logits, metadata, *, shard):
                raise RuntimeError("out of order")

        shard = VocabShard(0, 5, Alone())
        with pytest.raises(RuntimeError, match=r"^out of order$"):
            provider_of("sample", Failing(), EVERYTHING).sample(self.logits, self.metadata, shard=shard)

    def test_a_provider_of_the_operation_takes_a_shard_as_a_sampler_does(self):
        provider = tokendraw.load("sample", "native", device="cpu")
        logits = torch.tensor([[0.0, 9.0, 1.0, -3.0, 2.0]])
        metadata = SamplingMetadata.from_params([SamplingParams(temperature=0.0)])
        out = provider.sample(logits, metadata, shard=VocabShard(0, 5, Alone()))
        assert out.token_ids.tolist() == provider.sample(logits, metadata).token_ids.tolist() == [1]


class Alone:
    """A group of a single rank."""

    rank, size = 0, 1

    def all_gather(self, tensor):
        return tensor.unsqueeze(0).clone()

    def all_sum(self, tensor):
        return

    def broadcast_from_first(self, tensor):
        return lambda: None

    def gather_objects(self, value):
        return [value]
