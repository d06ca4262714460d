"""vLLM's V1 sampler through tokendraw: distribution, seeds, the rows for vLLM, and a failing sampler."""

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_vllm
from goodness_of_fit import FALSE_ALARM, chi_square, filtered_probabilities
from tokendraw_vllm import _v1
from vllm_stand_in import v1_sampler

V = 40
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(1)) * 2.0


@pytest.fixture
def sampler(vllm):
    tokendraw_vllm.register()
    return v1_sampler()


def batch(rows):
    return LOGITS.repeat(rows, 1)


def column(values, dtype):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 0.8), (5, 1.0), (V, 0.8)], ids=["both", "top-k", "top-p"])
def test_filtered_rows_are_drawn_from_their_distribution(sampler, top_k, top_p):
    rows = 20000
    torch.manual_seed(7)
    k = None if top_k == V else column([top_k] * rows, torch.int32)
    p = None if top_p == 1.0 else column([top_p] * rows, torch.float32)
    ids, _ = sampler(batch(rows), {}, k, p)
    assert ids.dtype == torch.int64
    assert chi_square(ids.numpy(), filtered_probabilities(LOGITS, top_k=top_k, top_p=top_p)) > FALSE_ALARM


def test_every_row_of_a_mixed_batch_has_its_own_filters(sampler):
    kinds = [(3, 1.0), (V, 0.5), (4, 0.9), (V, 1.0)]
    rows = 5000
    torch.manual_seed(3)
    k = column([top_k for top_k, _ in kinds] * rows, torch.int32)
    p = column([top_p for _, top_p in kinds] * rows, torch.float32)
    ids = sampler(batch(4 * rows), {}, k, p)[0].view(rows, 4).numpy()
    for place, (top_k, top_p) in enumerate(kinds):
        assert (
            chi_square(
                np.ascontiguousarray(ids[:, place]), filtered_probabilities(LOGITS, top_k=top_k, top_p=top_p)
            )
            > FALSE_ALARM
        )


def test_batches_without_filters_are_vllms_own_on_a_cpu(sampler):
    assert sampler(batch(3), {}, None, None)[0].tolist() == [0, 0, 0]


def test_a_small_vocabulary_is_vllms_own_on_a_cpu(sampler, log_lines, monkeypatch):
    monkeypatch.setattr(_v1, "MIN_CPU_VOCABULARY", V + 1)
    for _ in range(2):
        assert sampler(batch(2), {}, column([3, 3], torch.int32), None)[0].tolist() == [0, 0]
    reason = "a vocabulary of 40 is below 41, where vLLM's own may be quicker on a CPU"
    assert log_lines() == [("WARNING", f"tokendraw: V1 sampler left alone: {reason}")]


def test_batches_on_a_gpu_are_vllms_own(sampler, log_lines):
    logits = torch.zeros(2, V, device="meta")  # stands for a GPU
    for _ in range(2):
        sampler(logits, {}, torch.zeros(2, dtype=torch.int32, device="meta"), None)
    reason = "on a GPU tokendraw draws in the V2 runner alone. Set VLLM_USE_V2_MODEL_RUNNER=1 to take it"
    assert log_lines() == [("WARNING", f"tokendraw: V1 sampler left alone: {reason}")]


def test_plain_pytorch_leaves_vocabularies_of_medium_size_to_vllm_unless_it_is_named(
    vllm, log_lines, monkeypatch
):
    tokendraw_vllm.register()
    monkeypatch.setattr(_v1, "MIN_REFERENCE_VOCABULARY", V + 1)
    k = column([3, 3], torch.int32)
    assert v1_sampler()(batch(2), {}, k, None)[0].tolist() == [0, 0]
    reason = (
        "'native' is the best sampler for cpu here, and no quicker than vLLM's own. Install tokendraw-cpu, or set "
        "TOKENDRAW_SAMPLER=native to use it nevertheless"
    )
    assert log_lines() == [("WARNING", f"tokendraw: V1 sampler left alone: {reason}")]
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    assert 0 not in v1_sampler()(batch(2), {}, k, None)[0].tolist()


SPECIALISED = """
    from dataclasses import replace
    from tokendraw.plugin import hookimpl
    from tokendraw_native import plugin as native

    class Plugin:
        @hookimpl
        def tokendraw_describe(self):
            info = native.tokendraw_describe()
            operations = {"sample": info.operations["sample"]}
            return replace(info, name="quick", priority=50, operations=operations, upstream=None)

        @hookimpl
        def tokendraw_build(self, operation, device, need):
            return native.tokendraw_build(operation, device, need)

    plugin = Plugin()
"""


@pytest.fixture
def specialised(vllm, dists, monkeypatch):
    """vLLM's sampler where a specialised sampler is installed, in a vocabulary that is small for plain PyTorch."""
    monkeypatch.setattr(_v1, "MIN_REFERENCE_VOCABULARY", V + 1)
    dists.add(
        "quick-tokendraw", plugins={"quick": "quick_sampler:plugin"}, modules={"quick_sampler": SPECIALISED}
    )
    tokendraw_vllm.register()
    return v1_sampler()


def test_a_specialised_sampler_draws_batches_without_filters_on_a_cpu(specialised, log_lines):
    torch.manual_seed(5)
    ids, _ = specialised(batch(20000), {}, None, None)
    assert chi_square(ids.numpy(), filtered_probabilities(LOGITS)) > FALSE_ALARM
    assert log_lines() == [("INFO", "tokendraw: V1 sampler replaced (quick 1.0, vLLM 0.33.0)")]


def test_a_seeded_row_without_filters_draws_the_same_by_a_specialised_sampler_in_any_batch(specialised):
    def drawn(rows):
        generator, tokens = torch.Generator().manual_seed(5), []
        for _ in range(20):
            k = column([3] * rows + [V], torch.int32) if rows else None
            tokens.append(specialised(batch(rows + 1), {rows: generator}, k, None)[0][rows].item())
        return tokens

    assert drawn(0) == drawn(3)
    assert len(set(drawn(0))) > 1


def steps(sampler, seed, neighbours, number=20):
    """The tokens of a seeded request in a batch of changing rows."""
    generator, tokens = torch.Generator().manual_seed(seed), []
    for step in range(number):
        rows = neighbours(step)
        k = column([(V, 7, 3)[row % 3] for row in range(rows)] + [6], torch.int32)
        ids, _ = sampler(batch(rows + 1), {rows: generator}, k, None)
        tokens.append(ids[rows].item())
    return tokens


def test_a_seed_draws_the_same_tokens_alone_and_beside_rows_that_come_and_go(sampler):
    alone = steps(sampler, 11, lambda step: 0)
    assert len(set(alone)) > 1
    assert steps(sampler, 11, lambda step: (step * 5) % 7) == alone
    assert steps(sampler, 12, lambda step: 0) != alone


def test_a_seeded_row_without_filters_is_vllms_in_any_batch(sampler):
    generators = {1: torch.Generator().manual_seed(5), 2: torch.Generator().manual_seed(6)}
    k = column([3, V, 4], torch.int32)
    for _ in range(10):
        _, unfiltered, filtered = sampler(batch(3), generators, k, None)[0].tolist()
        assert unfiltered == 0
        assert filtered_probabilities(LOGITS, top_k=4)[filtered] > 0
    expected = torch.Generator().manual_seed(5)
    for _ in range(10):
        torch.randint(0, 9, (), generator=expected)
    assert torch.equal(generators[1].get_state(), expected.get_state())


def test_a_batch_of_such_rows_alone_is_vllms_own(sampler):
    generators = {row: torch.Generator().manual_seed(row) for row in range(2)}
    ids, _ = sampler(batch(2), generators, column([V, V], torch.int32), column([1.0, 1.0], torch.float32))
    assert ids.tolist() == [0, 0]


def test_unseeded_rows_follow_the_global_generator_of_torch(sampler):
    def drawn():
        torch.manual_seed(9)
        return sampler(batch(50), {}, column([20] * 50, torch.int32), None)[0].tolist()

    assert drawn() == drawn()


def test_noise_is_float64_where_vllm_uses_float64(vllm, monkeypatch):
    needs = []
    load = tokendraw.load_sampler
    monkeypatch.setattr(
        tokendraw,
        "load_sampler",
        lambda *names, **named: needs.append(named["need"]) or load(*names, **named),
    )
    tokendraw_vllm.register()
    import vllm.envs

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    v1_sampler(use_fp64_gumbel=True)(batch(1), {}, column([2], torch.int32), None)
    assert needs == [tokendraw.Need(gumbel_dtype="fp64", batch_invariant=True)]


def test_a_raising_sampler_hands_back_to_vllm_with_a_sentence(sampler, log_lines, monkeypatch):
    k = column([3, 3], torch.int32)
    assert 0 not in sampler(batch(2), {}, k, None)[0].tolist()

    def broken(self, logits, metadata):
        raise RuntimeError("illegal\nmemory access")

    with monkeypatch.context() as patch:
        patch.setattr(tokendraw.Sampler, "sample", broken)
        assert [sampler(batch(2), {}, k, None)[0].tolist() for _ in range(3)] == [[0, 0]] * 3
    assert sampler(batch(2), {}, k, None)[0].tolist() == [0, 0]
    assert log_lines()[1:] == [
        (
            "WARNING",
            "tokendraw: V1 sampler is vLLM's own again: 'native' raised RuntimeError: illegal memory access",
        )
    ]
