"""DESIGN sections 2 and 3 on a CUDA device: no call waits for the device, and results equal the CPU's."""

import pytest
import torch

from calling import call, tokens
from cuda_batches import KINDS, load, logits_of, metadata_of
from tokendraw import InvalidInputError, SamplingMetadata, SamplingParams
from tokendraw_testing.kit.device import LONGEST_CALL_SECONDS, seconds_behind_a_busy_device, sync_is_an_error

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_makes_no_synchronizing_cuda_call(kind, mode):
    sampler, logits, metadata = load(mode), logits_of(1), metadata_of(kind)
    sampler.sample(logits, metadata)
    with sync_is_an_error():
        sampler.sample(logits, metadata)
        sampler.sample(logits.clone(), metadata)


def test_the_check_for_synchronizing_calls_sees_one():
    with sync_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(3, device="cuda").nonzero()


def test_the_stopwatch_sees_a_call_that_waits():
    flag = torch.zeros(1, device="cuda")
    seconds, slept = seconds_behind_a_busy_device(flag.item)
    assert not slept
    assert seconds > LONGEST_CALL_SECONDS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9, "logprobs": 2}], ids=str
)
def test_more_than_2_to_the_31_logits_work(dtype, settings):
    """The last rows lie beyond 32-bit indices, and draw the same tokens as alone."""
    size = 128_256
    rows = 2**31 // size + 16
    if torch.cuda.get_device_properties(0).total_memory < 60 << 30:
        pytest.skip("needs 60 GiB of device memory")
    generator = torch.Generator("cuda").manual_seed(8)
    few = (3 * torch.randn(32, size, device="cuda", generator=generator)).to(dtype)
    logits = torch.empty(rows, size, dtype=dtype, device="cuda")
    logits[:-32] = few[:1]
    logits[-32:] = few
    params = [SamplingParams(seed=9, **settings)] * (rows - 1) + [SamplingParams(temperature=0.0)]
    found = call(load(), logits, params, range(rows))
    expected = call(load(), few, params[-32:], range(rows - 32, rows))
    assert found.token_ids[-32:].tolist() == tokens(expected)
    assert found.valid.all()
    assert len(set(found.token_ids[:1000].tolist())) > 5
    if "logprobs" in settings:
        assert torch.equal(found.logprobs.token_ids[-32:], expected.logprobs.token_ids)
        torch.testing.assert_close(
            found.logprobs.logprobs[-32:], expected.logprobs.logprobs, rtol=0, atol=1e-5
        )
    del logits, found
    torch.cuda.empty_cache()


def test_logits_on_another_device_are_refused():
    with pytest.raises(
        InvalidInputError, match=r"^'logits' needs device cuda.*, found cpu\. Move the logits"
    ):
        load().sample(torch.zeros(1, 5), SamplingMetadata())


def test_metadata_on_another_device_is_refused():
    metadata = SamplingMetadata.from_params([SamplingParams()])
    with pytest.raises(
        InvalidInputError, match=r"^'metadata' needs the device of 'logits', cuda:0, found cpu\."
    ):
        load().sample(torch.zeros(1, 5, device="cuda"), metadata)
