"""Bad input is refused by name before any sampler runs: needed, found, mend."""

import numpy as np
import pytest
import torch

from calling import recording, refused
from tokendraw import (
    BatchFacts,
    Drafts,
    InvalidInputError,
    InvalidParameterError,
    RowKinds,
    SamplingMetadata,
    SamplingParams,
)

V = 8
LOGITS = torch.zeros(2, V)
PARAMS = [SamplingParams()] * 2
METADATA = SamplingMetadata.from_params(PARAMS)
IDS, OFFSETS = torch.tensor([3, 4]), torch.tensor([0, 2, 4])
NESTED = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(4)], layout=torch.jagged)


STRANGE = {
    "'logits' needs a torch.Tensor, found numpy.ndarray. Pass torch.as_tensor(logits), of shape [B, V].": (
        lambda: np.zeros((2, V), np.float32)
    ),
    "'logits' needs a torch.Tensor, found list. Pass torch.as_tensor(logits), of shape [B, V].": LOGITS.tolist,
    "'logits' needs a torch.Tensor, found None. Pass torch.as_tensor(logits), of shape [B, V].": lambda: None,
    "'logits' needs a dense tensor, found layout torch.sparse_coo. Pass logits.to_dense().": LOGITS.to_sparse,
    "'logits' needs a dense tensor, found layout torch.sparse_csr. Pass logits.to_dense().": LOGITS.to_sparse_csr,
    "'logits' needs a dense tensor, found layout torch._mkldnn. Pass logits.to_dense().": LOGITS.to_mkldnn,
    "'logits' needs a dense tensor, found a nested one. Pass logits.to_padded_tensor(float('-inf')).": (
        lambda: NESTED
    ),
    "'logits' needs a tensor as it is in memory, found its negative. Pass logits.resolve_neg().": (
        lambda: LOGITS.to(torch.complex64).conj().imag
    ),
    "'logits' needs dtype float32, bfloat16, float16, found torch.quint8.": (
        lambda: torch.quantize_per_tensor(LOGITS, 0.1, 0, torch.quint8)
    ),
    "'logits' needs dtype float32, bfloat16, float16, found torch.complex64.": lambda: LOGITS.to(
        torch.complex64
    ),
    "'logits' needs device cpu, where the sampler was built, found meta. Move the logits, or load a sampler for "
    "meta.": lambda: LOGITS.to("meta"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("message", STRANGE)
def test_strange_logits_reach_no_sampler_after_sound_calls_too(message):
    (ours, backend), drafts, bad = recording(), Drafts.from_lists([[], []]), STRANGE[message]()
    for served in (0, 1):
        refused(message, InvalidInputError, lambda: ours.sample(bad, METADATA))
        assert len(backend.logits) == served
        ours.sample(LOGITS, METADATA)
    refused(message, InvalidInputError, lambda: ours.draft(bad, METADATA))
    message = message.replace("'logits'", "'target_logits'")
    message = message.replace("Pass logits", "Pass target_logits").replace("(logits)", "(target_logits)")
    refused(message, InvalidInputError, lambda: ours.verify(bad, drafts, METADATA))
    assert len(backend.logits) == 2


@pytest.mark.parametrize(
    ("bad", "found"),
    [(PARAMS, "list"), (SamplingParams(), "tokendraw.SamplingParams"), (None, "None")],
    ids=str,
)
def test_what_is_no_metadata_reaches_no_sampler(bad, found):
    (ours, backend), drafts = recording(), Drafts.from_lists([[], []])
    message = (
        f"'metadata' needs a tokendraw.SamplingMetadata, found {found}. Pass SamplingMetadata.from_params(params, "
        "device=...)."
    )
    for call in (
        lambda: ours.sample(LOGITS, bad),
        lambda: ours.draft(LOGITS, bad),
        lambda: ours.verify(LOGITS, drafts, bad),
    ):
        refused(message, InvalidInputError, call)
    assert backend.logits == []


def test_metadata_of_a_subclass_is_refused_and_says_what_to_use_in_its_place():
    class OwnMetadata(SamplingMetadata):
        pass

    (ours, backend) = recording()
    metadata = SamplingMetadata.from_params(PARAMS)
    own = OwnMetadata(**{name: getattr(metadata, name) for name in SamplingMetadata.__dataclass_fields__})
    refused(
        f"'metadata' needs a tokendraw.SamplingMetadata itself, found its subclass {__name__}.OwnMetadata. Pass "
        "values of your own as SamplingParams(filters={...}), see tokendraw.filters.",
        InvalidInputError,
        lambda: ours.sample(LOGITS, own),
    )
    assert backend.logits == []


@pytest.mark.parametrize(("bad", "found"), [([[1]], "list"), (IDS, "torch.Tensor"), (None, "None")])
def test_what_are_no_drafts_is_refused(bad, found):
    message = f"'drafts' needs a tokendraw.Drafts, found {found}. Pass Drafts.from_lists(draft_token_ids, device=...)."
    refused(message, InvalidInputError, lambda: recording()[0].verify(LOGITS, bad, METADATA))


MAKE_ONE = "Make one a request: SamplingParams(temperature=..., top_k=...)."
NO_PARAMS = {
    f"'params' of row 1 needs a tokendraw.SamplingParams, found dict. {MAKE_ONE}": [
        SamplingParams(),
        {"top_k": 5},
    ],
    f"'params' of row 0 needs a tokendraw.SamplingParams, found None. {MAKE_ONE}": [None],
    f"'params' of row 0 needs a tokendraw.SamplingParams, found type. {MAKE_ONE}": [SamplingParams],
    f"'params' of row 0 needs a tokendraw.SamplingParams, found str. {MAKE_ONE}": {"top_k": 5},
    "'params' needs a list of SamplingParams, found None. Pass a list.": None,
    "'params' needs a list of SamplingParams, found int. Pass a list.": 3,
    "'params' needs one SamplingParams a request, found a single SamplingParams. Pass [params].": SamplingParams(),
}


@pytest.mark.parametrize("message", NO_PARAMS)
def test_what_are_no_params_is_refused(message):
    refused(message, InvalidParameterError, lambda: SamplingMetadata.from_params(NO_PARAMS[message]))
    refused(message, InvalidParameterError, lambda: RowKinds.of(NO_PARAMS[message]))


def test_any_iterable_of_params_will_do():
    params = [SamplingParams(temperature=0.5, seed=3), SamplingParams(top_k=4)]
    expected = SamplingMetadata.from_params(params, positions=[4, 5])
    for given in (tuple(params), iter(params), (p for p in params), dict.fromkeys(params)):
        found = SamplingMetadata.from_params(given, positions=(i for i in (4, 5)))
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "positions"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert found.facts == expected.facts
    assert RowKinds.of(p for p in params).of_slot == (0, 1)


FIELDS = {
    "'temperature' needs a torch.Tensor, found float. Pass a tensor with an entry for each, or use "
    "SamplingMetadata.from_params.": {"temperature": 1.0},
    "'top_k' needs a torch.Tensor, found list. Pass a tensor with an entry for each, or use "
    "SamplingMetadata.from_params.": {"top_k": [5]},
    "'positions' needs a torch.Tensor, found numpy.ndarray. Pass a tensor with an entry for each, or use "
    "SamplingMetadata.from_params.": {"positions": np.arange(2)},
    "'top_p' needs a dense tensor, found layout torch.sparse_coo. Pass top_p.to_dense().": {
        "top_p": torch.ones(2).to_sparse()
    },
    "'min_p' needs a dense tensor, found a nested one. Pass min_p.to_padded_tensor(float('-inf')).": {
        "min_p": NESTED
    },
    "'seed' needs an integer dtype that torch computes with, found torch.uint64. Pass seed.to(torch.int64).": {
        "seed": torch.tensor([1, 2], dtype=torch.uint64),
        "positions": torch.tensor([1, 2]),
    },
    "the tensors need one length, found temperature 3, top_k 2.": {
        "temperature": torch.ones(3),
        "top_k": torch.tensor([1, 2]),
    },
    "the tensors need one device, found temperature on cpu, top_p on meta.": {
        "temperature": torch.ones(2),
        "top_p": torch.ones(2, device="meta"),
    },
}


@pytest.mark.parametrize("message", FIELDS)
def test_a_field_that_is_no_such_tensor_is_refused(message):
    refused(message, InvalidInputError, lambda: SamplingMetadata(**FIELDS[message]))


KNOWLEDGE = {
    "'facts' needs a tokendraw.BatchFacts, found None. Leave it out where nothing is known.": {"facts": None},
    "'facts' needs a tokendraw.BatchFacts, found dict. Leave it out where nothing is known.": {"facts": {}},
    "'row_kinds' needs a tokendraw.RowKinds, found list. Leave it out where nothing is known.": {
        "row_kinds": []
    },
}


@pytest.mark.parametrize("message", KNOWLEDGE)
def test_what_the_host_knows_comes_in_its_own_types(message):
    refused(message, InvalidParameterError, lambda: SamplingMetadata(**KNOWLEDGE[message]))


ROW_INDEX = {
    "'row_index' needs an integer dtype, found torch.float32.": torch.tensor([0.0, 1.0]),
    "'row_index' needs one dimension, found shape [1, 2].": torch.tensor([[0, 1]]),
}


@pytest.mark.parametrize("message", ROW_INDEX)
def test_a_row_index_that_is_no_such_tensor_is_refused(message):
    refused(message, InvalidInputError, lambda: RowKinds.of(PARAMS, row_index=ROW_INDEX[message]))
    refused(
        message,
        InvalidInputError,
        lambda: SamplingMetadata.from_params(PARAMS, row_index=ROW_INDEX[message]),
    )
    assert RowKinds.of(PARAMS, row_index=torch.tensor([1, 1, 0])).slot_of_row == (1, 1, 0)


DRAFTS = {
    "'draft_probs' needs a torch.Tensor, found numpy.ndarray. Pass torch.as_tensor(draft_probs).": {
        "draft_probs": np.ones((2, V))
    },
    "'draft_logits' needs a torch.Tensor, found list. Pass torch.as_tensor(draft_logits).": {
        "draft_logits": [[0.0] * V] * 2
    },
    "'draft_logits' needs a dense tensor, found layout torch.sparse_coo. Pass draft_logits.to_dense().": {
        "draft_logits": LOGITS.to_sparse()
    },
    "'draft_probs' needs shape [L - B, V] with V >= 1, found [].": {"draft_probs": torch.tensor(0.5)},
}


@pytest.mark.parametrize("message", DRAFTS)
def test_distributions_that_are_no_tensors_are_refused(message):
    for call in (
        lambda: Drafts.from_lists([[3], [4]], **DRAFTS[message]),
        lambda: Drafts.from_counts(IDS, [1, 1], **DRAFTS[message]),
        lambda: Drafts(draft_token_ids=IDS, cu_num_logits=OFFSETS, max_drafts=1, **DRAFTS[message]),
    ):
        refused(message, InvalidInputError, call)


def test_ids_that_are_no_lists_or_tensors_are_refused():
    for message, error, call in (
        (
            "'draft_token_ids' needs a list of lists of ids, one a request, found None. Pass a list.",
            InvalidParameterError,
            lambda: Drafts.from_lists(None),
        ),
        (
            "'draft_token_ids' of row 0 needs a list of integers, found int. Pass a list.",
            InvalidParameterError,
            lambda: Drafts.from_lists([1, 2]),
        ),
        (
            "'draft_token_ids' needs a torch.Tensor, found list. Pass a tensor of ids, or use Drafts.from_lists.",
            InvalidInputError,
            lambda: Drafts.from_counts([1, 2], [1, 1]),
        ),
        (
            "'cu_num_logits' needs a torch.Tensor, found list. Pass a tensor, or use Drafts.from_lists.",
            InvalidInputError,
            lambda: Drafts(draft_token_ids=IDS, cu_num_logits=[0, 2, 4], max_drafts=1),
        ),
    ):
        refused(message, error, call)
    drafts = Drafts.from_lists((t for t in tokens) for tokens in ([3], [], [4, 5]))
    assert (drafts.draft_token_ids.tolist(), drafts.num_drafts) == ([3, 4, 5], (1, 0, 2))


@pytest.mark.parametrize(
    ("device", "found", "mend"),
    [
        ("gpu", "'gpu'", "device='cuda'"),
        ("rocm", "'rocm'", "device='cuda' for AMD GPUs too"),
        ("cdua", "'cdua'", "device='cuda'"),
        ("CPU", "'CPU'", "device='cpu'"),
        ("quantum", "'quantum'", "one of those"),
        (3.5, "'3.5'", "one of those"),
    ],
)
def test_a_device_that_torch_does_not_know_is_refused_with_the_nearest(device, found, mend):
    message = f"'device' needs a name such as cpu, cuda or cuda:1, found {found}. Pass {mend}."
    refused(message, InvalidParameterError, lambda: SamplingMetadata.from_params(PARAMS, device=device))
    refused(message, InvalidParameterError, lambda: Drafts.from_lists([[1]], device=device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_device_that_is_not_here_is_refused():
    message = "'device' needs a device that torch finds here, found 'cuda'. Pass one such as 'cpu'."
    refused(message, InvalidParameterError, lambda: SamplingMetadata.from_params(PARAMS, device="cuda"))
    refused(message, InvalidParameterError, lambda: Drafts.from_lists([[1]], device="cuda"))


def test_seeds_and_limits_that_are_no_integers_are_refused():
    generator = torch.Generator()
    for call in (
        lambda: SamplingMetadata.from_params([SamplingParams(seed=generator)], positions=[0]),
        lambda: RowKinds.of([SamplingParams(seed=generator)]),
    ):
        with pytest.raises(
            InvalidParameterError, match=r"^'seed' of row 0 needs an integer in .* found <torch\._C"
        ):
            call()
    refused(
        "'row_index' needs a list of integers, found int. Pass a list.",
        InvalidParameterError,
        lambda: RowKinds.of(PARAMS, row_index=1),
    )
    refused(
        "'max_logprobs' of BatchFacts needs an integer >= -1 or None, found 2.5. Pass one, or leave out max_logprobs=.",
        InvalidParameterError,
        lambda: SamplingMetadata(facts=BatchFacts(max_logprobs=2.5)),
    )
