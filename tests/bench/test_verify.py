"""``tokendraw bench --op verify``: cells, logits, contenders, and a run of the command."""

import inspect
import sys
import types
from dataclasses import replace

import pytest
import torch

import tokendraw
import tokendraw_native
from command_line import call
from fake_dists import EVERYTHING, plugin
from tokendraw import Drafts, SamplerUnavailableError
from tokendraw_bench import make_inputs, metadata_of, operations
from tokendraw_bench.cells import FILTERS
from tokendraw_bench.contenders import find_unsupported_part, select_contenders
from tokendraw_bench.operations.verify import VerifyCell, draft_ids

CPU = torch.device("cpu")
BENCH = operations.get("verify")
prepare_flashinfer = BENCH.baselines()["flashinfer-direct"]
CELL = VerifyCell(3, 300, "float32", "both", "peaked-7", 4, "rejection")
NATIVE = tokendraw_native.plugin.tokendraw_describe()
COUPLED = replace(CELL, mode="coupled")


class TestCells:
    def test_a_buffer_has_the_rows_of_the_mode(self):
        assert (CELL.num_target_rows, CELL.num_rows) == (15, 15 + 12)
        assert (COUPLED.num_target_rows, COUPLED.num_rows) == (15, 15)


class TestLogits:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_below_the_target_are_the_drafts_and_each_is_the_target_plus_noise(self, dtype):
        cell = replace(CELL, dtype=dtype, family="gaussian", batch=20)
        first, second = make_inputs(cell, CPU, 2)
        assert list(first.shape) == [20 * 9, 300]
        assert first.dtype == getattr(torch, dtype)
        target = first[:100].view(20, 5, 300)[:, :4].reshape(80, 300).float()
        noise = first[100:].float() - target
        assert abs(noise.std().item() - 0.5) < 0.02
        assert abs(noise.mean().item()) < 0.02
        assert not torch.equal(first, second)
        assert all(map(torch.equal, (first, second), make_inputs(cell, CPU, 2)))

    def test_without_draft_logits_in_the_mode_the_buffer_has_none(self):
        (both,), (target,) = make_inputs(CELL, CPU, 1), make_inputs(COUPLED, CPU, 1)
        assert torch.equal(both[:15], target)

    @pytest.mark.parametrize("family", ["peaked-7", "peaked-30", "gaussian"])
    def test_a_single_tensor_of_ids_is_drawn_from_the_drafts_of_every_buffer(self, family):
        """Drafts are kept by every filter, follow the probabilities, and have ids all over the vocabulary."""
        cell = replace(CELL, batch=200, family=family)
        ids = draft_ids(cell, CPU)
        assert (ids.shape, len(ids.unique()) > 250) == ((800,), True)
        for buffer in make_inputs(cell, CPU, 2):
            draft = buffer[cell.num_target_rows :] / 0.8
            best, _ = draft.topk(50)
            probability = best.softmax(-1)
            kept = probability.cumsum(-1) - probability < 0.9
            own = draft.gather(-1, ids[:, None])
            assert (own >= best.where(kept, torch.inf).amin(-1, keepdim=True)).all()
            q = probability.where(kept, 0.0) / probability.where(kept, 0.0).sum(-1, keepdim=True)
            at_the_best = (own == best[:, :1]).float().mean()
            assert abs(at_the_best - q[:, 0].mean()) < 5 * (0.25 / 800) ** 0.5

    @pytest.mark.parametrize("filters", ["none", "both"])
    @pytest.mark.parametrize("family", ["peaked-7", "peaked-30", "gaussian"])
    @pytest.mark.fast_first
    def test_rejection_accepts_about_three_of_four(self, family, filters):
        cell = replace(CELL, batch=200, family=family, filters=filters, vocab_size=2000)
        output = verified(cell)
        judged = (output.num_accepted + 1).clamp(max=4).sum()
        assert 0.6 < output.num_accepted.sum() / judged < 0.9


def verified(cell, buffer=None):
    """Make the native sampler's call of a cell."""
    (native,) = select_contenders(("native",), CPU, "verify")
    buffer = make_inputs(cell, CPU, 1)[0] if buffer is None else buffer
    (one,) = native.prepare(cell, metadata_of(cell, CPU), buffer)
    assert one.graph_safe
    return one.draw(buffer)


class TestContenders:
    @pytest.mark.parametrize("filters", FILTERS)
    @pytest.mark.parametrize("cell", [CELL, COUPLED], ids=["rejection", "coupled"])
    @pytest.mark.fast_first
    def test_the_call_is_the_verification_of_the_requests_of_the_cell(self, cell, filters):
        cell = replace(cell, filters=filters)
        (buffer,) = make_inputs(cell, CPU, 1)
        metadata = metadata_of(cell, CPU)
        assert metadata.row_index.tolist() == [0] * 5 + [1] * 5 + [2] * 5
        assert len(set(metadata.positions.tolist())) == 15
        ids = draft_ids(cell, CPU)
        q = {"draft_logits": buffer[15:]} if cell.mode == "rejection" else {}
        drafts = Drafts.from_lists(ids.view(3, 4).tolist(), **q)
        sampler = tokendraw.load_sampler("native", device="cpu")
        torch.manual_seed(1)
        expected = sampler.verify(buffer[:15], drafts, metadata, mode=cell.mode)
        torch.manual_seed(1)
        found = verified(cell, buffer)
        assert torch.equal(found.token_ids, expected.token_ids)
        assert torch.equal(found.num_accepted, expected.num_accepted)

    def test_by_default_verifying_samplers_take_part(self, dists):
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
        assert [c.name for c in select_contenders((), CPU, "verify")] == ["native"]
        assert [c.name for c in select_contenders((), CPU)] == ["acme", "native", "torch-sort"]

    @pytest.mark.parametrize(
        ("cell", "limits", "reason"),
        [
            (CELL, {"draft_kinds": ("probs",)}, "drafts with logits"),
            (CELL, {"verify_modes": ("coupled",)}, "the mode rejection"),
            (COUPLED, {"verify_modes": ("rejection",)}, "the mode coupled"),
            (COUPLED, {"draft_kinds": ("probs", "logits")}, "drafts that were not drawn"),
            (CELL, {"ragged_drafts": False, "placeholder_drafts": False}, None),
            (COUPLED, {"ragged_drafts": False, "placeholder_drafts": False}, None),
        ],
        ids=str,
    )
    def test_drafts_beyond_the_capabilities_are_not_timed(self, cell, limits, reason):
        limited = replace(NATIVE.operations["verify"], **limits)
        (buffer,) = make_inputs(cell, CPU, 1)
        assert find_unsupported_part(BENCH, limited, cell, metadata_of(cell, CPU), buffer) == reason


@pytest.fixture
def fake_flashinfer(monkeypatch):
    """Stand-in for the functions of FlashInfer 0.6.11 in a verification, which logs the calls."""
    calls = []
    package, module = types.ModuleType("flashinfer"), types.ModuleType("flashinfer.sampling")

    def softmax(logits, temperature):
        calls.append(("softmax", list(logits.shape), temperature.unique().tolist()))
        return (logits.float() / temperature[:, None]).softmax(-1)

    def filtering(name, parameter):
        def filtered(values, **given):
            ((called, rows),) = given.items()
            assert called == parameter
            calls.append((name, rows.dtype, rows.shape[0] == values.shape[0], rows.unique().tolist()))
            return values

        setattr(module, name, filtered)

    def chain(
        draft_probs,
        draft_token_ids,
        target_probs,
        maybe_output_accepted_token_num=None,
        maybe_output_emitted_draft_token_num=None,
        deterministic=True,
        generator=None,
        seed=None,
        offset=None,
    ):
        calls.append(("chain", seed, offset))
        calls.append((draft_probs, draft_token_ids, target_probs))

    module.softmax, module.chain_speculative_sampling = softmax, chain
    filtering("top_k_renorm_probs", "top_k")
    filtering("top_k_mask_logits", "top_k")
    filtering("top_p_renorm_probs", "top_p")
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", module)
    return calls


SOFTMAX = ("softmax", [27, 300], [pytest.approx(0.8)])
TOP_P = ("top_p_renorm_probs", torch.float32, True, [pytest.approx(0.9)])
CHAIN = ("chain", 1, 0)


class TestFlashInfer:
    @pytest.mark.parametrize(
        ("filters", "called"),
        [
            ("none", {"softmax": (SOFTMAX,)}),
            ("top-p", {"softmax, top_p_renorm_probs": (SOFTMAX, TOP_P)}),
            (
                "top-k",
                {
                    "softmax, top_k_renorm_probs": (SOFTMAX, ("top_k_renorm_probs", torch.int32, True, [50])),
                    "top_k_mask_logits, softmax": (("top_k_mask_logits", torch.int32, True, [50]), SOFTMAX),
                },
            ),
            (
                "both",
                {
                    "softmax, top_k_renorm_probs, top_p_renorm_probs": (
                        SOFTMAX,
                        ("top_k_renorm_probs", torch.int32, True, [50]),
                        TOP_P,
                    ),
                    "top_k_mask_logits, softmax, top_p_renorm_probs": (
                        ("top_k_mask_logits", torch.int32, True, [50]),
                        SOFTMAX,
                        TOP_P,
                    ),
                },
            ),
        ],
    )
    def test_every_sequence_for_probabilities_is_called_and_passes_them_to_the_chain(
        self, fake_flashinfer, filters, called
    ):
        cell = replace(CELL, filters=filters)
        (buffer,) = make_inputs(cell, CPU, 1)
        probs = (buffer / 0.8).softmax(-1)
        found = {}
        for one in prepare_flashinfer(cell, metadata_of(cell, CPU)):
            one.draw(buffer)
            *steps, (draft, ids, target) = fake_flashinfer
            found[one.way] = tuple(steps)
            assert one.graph_safe
            assert torch.allclose(target, probs[:15].view(3, 5, 300))
            assert torch.allclose(draft, probs[15:].view(3, 4, 300))
            assert torch.equal(ids, draft_ids(cell, CPU).view(3, 4).int())
            fake_flashinfer.clear()
        assert found == {
            f"{way}, chain_speculative_sampling": (*steps, CHAIN) for way, steps in called.items()
        }

    @pytest.mark.parametrize(
        ("cell", "reason"),
        [
            (COUPLED, "the mode coupled"),
            (replace(CELL, filters="min-p"), "min_p per row"),
            (replace(CELL, filters="mixed", batch=5), "min_p per row"),
        ],
        ids=str,
    )
    def test_modes_and_filters_beyond_the_chain_are_not_timed(self, fake_flashinfer, cell, reason):
        with pytest.raises(SamplerUnavailableError) as error:
            prepare_flashinfer(cell, metadata_of(cell, CPU))
        assert str(error.value) == f"it does not serve {reason}"

    def test_a_version_without_a_seed_stays_out_of_graphs(self, fake_flashinfer):
        module = sys.modules["flashinfer.sampling"]
        chain = module.chain_speculative_sampling
        kept = [p for n, p in inspect.signature(chain).parameters.items() if n not in ("seed", "offset")]
        chain.__signature__ = inspect.Signature(kept)
        (buffer,) = make_inputs(CELL, CPU, 1)
        for one in prepare_flashinfer(CELL, metadata_of(CELL, CPU)):
            assert not one.graph_safe
            one.draw(buffer)
            assert fake_flashinfer[-2] == ("chain", None, None)


def bench(*arguments):
    return call("bench", "--op", "verify", "--device", "cpu", *arguments)


TINY = ("--batch", 2, "--vocab-size", 256)


class TestCommand:
    def test_a_run_has_a_row_a_cell(self, fixed):
        result = bench(*TINY, "--filters", "both")
        assert (result.stderr, result.exit_code) == ("", 0)
        assert result.stdout.splitlines()[5:] == [
            "batch  vocabulary  dtype    drafts  mode       filters  logits     nucleus  read us      native us",
            "    2         256  float32       4  rejection  both     peaked-30       30     10.0  100.0 (10.0x)",
            "    2         256  float32       4  coupled    both     peaked-30       30     10.0  100.0 (10.0x)",
            "",
            "The read is the fastest of several: torch.sum.",
            "A draft's logits are those of the target plus noise. The read is of both for rejection, of the",
            "target's alone for coupled, which looks at no others.",
        ]
