"""DESIGN section 3: seeds, positions and slots as callers pass them, and generators of several ranks."""

import pytest
import torch

import tokendraw
from calling import call, tokens
from tokendraw import InvalidParameterError, SamplingMetadata, SamplingParams

V = 2500


@pytest.mark.parametrize("bad", [2.5, "7", -1, 2**63, None])
def test_a_position_that_is_no_index_is_a_value_error(bad):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingMetadata.from_params([SamplingParams(seed=1)] * 3, positions=[0, bad, 2])
    assert str(caught.value) == f"'positions' of row 1 needs an integer >= 0, found {bad!r}."


def test_seeds_without_positions_are_a_value_error():
    params = [SamplingParams(), SamplingParams(seed=0)]
    message = (
        "'seed' of row 1 needs 'positions', found none: without them every step would draw with the same noise. "
        "Pass positions, one integer a row: the sequence length minus one."
    )
    with pytest.raises(InvalidParameterError) as caught:
        SamplingMetadata.from_params(params)
    assert str(caught.value) == message
    with pytest.raises(InvalidParameterError):
        SamplingMetadata(seed=torch.tensor([1, 2]))


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 1, 0, 2, 2]], ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_row_index_gives_each_row_the_parameters_of_its_slot(sampler, device, order, as_tensor):
    """The kit passes slots as a list."""
    slots = [SamplingParams(seed=5), SamplingParams(temperature=0.0), SamplingParams(seed=6, top_k=9)]
    logits, positions = torch.zeros(len(order), V), [1000 + i for i in range(len(order))]
    expected = tokens(call(sampler, logits, [slots[slot] for slot in order], positions))
    row_index = torch.tensor(order, dtype=torch.int32, device=device) if as_tensor else order
    assert tokens(call(sampler, logits, slots, positions, row_index)) == expected


class TestRanksThatAllHoldTheLogits:
    """Ranks of an engine with gathered logits, each with a separate generator, run in turn."""

    @staticmethod
    def rank(sampler, params, seed, *, use=lambda device: None):
        """Return three calls' tokens on a rank after ``torch.manual_seed(seed)`` and another use of the generator."""
        torch.manual_seed(seed)
        drawn = []
        for position in range(3):
            drawn += tokens(call(sampler, torch.zeros(len(params), V), params, [position] * len(params)))
            use(sampler.device)
        return drawn

    MIXED = (
        SamplingParams(),
        SamplingParams(seed=5),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=9),
    )

    def test_unseeded_rows_differ_after_another_use_of_the_generator_on_one_rank(self, sampler):
        one = self.rank(sampler, self.MIXED, 3)
        other = self.rank(sampler, self.MIXED, 3, use=lambda device: torch.rand(1, device=device))
        rows = len(self.MIXED)
        assert one[:rows] == other[:rows]
        assert one[rows::rows] != other[rows::rows]

    def test_loading_and_warming_up_on_one_rank_changes_nothing(self, sampler, warmup_on_a_cpu):
        def load_and_warm_up(device):
            again = tokendraw.load_sampler("native", device=device)
            again.warmup(V, dtypes=[torch.float32], batch_sizes=[2])

        other = self.rank(sampler, self.MIXED, 3, use=load_and_warm_up)
        assert self.rank(sampler, self.MIXED, 3) == other
