"""SGLang's requests with rules of tokendraw, ``custom_params={"tokendraw": {...}}``, in batches that come and go."""

import pytest
import torch

import tokendraw
from sglang_engine import Request, backend, draw, info_of, keep

pytestmark = pytest.mark.usefixtures("sglang")
V = 1000


@pytest.fixture
def sampler():
    from sglang.srt.layers.sampler import create_sampler

    return create_sampler()


@pytest.fixture
def logits():
    return 3 * torch.randn(5, V, generator=torch.Generator().manual_seed(1))


def asking(rules, **params):
    return Request(custom_params={"tokendraw": rules}, **params)


def own_draws(logits, positions, *params):
    metadata = tokendraw.SamplingMetadata.from_params(params, positions=positions)
    return tokendraw.load_sampler("native", device="cpu").sample(logits, metadata).token_ids.tolist()


REQUESTS = (
    ({"temperature": 1.5, "sampling_seed": 5}, {"top_n_sigma": 0.5}),
    ({"temperature": 1.5, "top_p": 0.9, "sampling_seed": 6}, {}),
    ({"min_p": 0.01, "sampling_seed": 7}, {"epsilon_cutoff": 0.02, "p_less": 1}),
)


def params_of(fields, filters):
    fields = {("seed" if name == "sampling_seed" else name): value for name, value in fields.items()}
    return tokendraw.SamplingParams(filters=filters or None, **fields)


def test_rows_draw_with_their_rules_while_rows_leave_and_join(sampler, logits):
    positions = list(range(50))
    expected = {
        row: own_draws(logits[[row] * 50], positions, *[params_of(*REQUESTS[row])] * 50) for row in range(3)
    }
    plain = own_draws(logits[[0] * 50], positions, *[params_of(REQUESTS[0][0], {})] * 50)
    assert expected[0] != plain
    requests = [asking(rules, **fields) if rules else Request(**fields) for fields, rules in REQUESTS]
    info = info_of(requests[1])
    rows = [1]
    for step in range(50):
        if step == 10:
            info.merge_batch(info_of(requests[0]))
            rows.append(0)
        if step == 20:
            info.merge_batch(info_of(requests[2], Request()))
            rows += [2, 3]
        if step == 30:
            keep(info, [1, 2])
            rows = [0, 2]
        if step == 40:
            keep(info, [1])
            rows = [2]
        tokens, _ = draw(sampler, logits[rows], info.copy_for_forward(), [step] * len(rows))
        for row, token in zip(rows, tokens.tolist(), strict=True):
            assert row == 3 or token == expected[row][step], (row, step)


ORDERS = ("temperature_last", "top_k_first", "joint", None)


def test_rows_draw_in_their_filter_order_while_rows_leave_and_join(sampler, logits):
    """SGLang's own order is joint."""
    fields, positions = {"temperature": 1.8, "top_k": 40, "top_p": 0.8, "min_p": 0.02}, list(range(200))
    requests = [
        asking({"filter_order": order} if order else {}, **fields, sampling_seed=5) for order in ORDERS
    ]
    expected = [
        own_draws(
            logits[[0] * 200],
            positions,
            *[tokendraw.SamplingParams(**fields, seed=5, filter_order=order or "joint")] * 200,
        )
        for order in ORDERS
    ]
    assert len({str(tokens) for tokens in expected}) == 3
    info, rows = info_of(requests[3]), [3]
    for step in range(200):
        if step == 20:
            info.merge_batch(info_of(requests[0], requests[1]))
            rows += [0, 1]
        if step == 100:
            info.merge_batch(info_of(requests[2]))
            rows.append(2)
        if step == 150:
            keep(info, [0, 1, 3])
            rows = [3, 0, 2]
        tokens, _ = draw(sampler, logits[[0] * len(rows)], info.copy_for_forward(), [step] * len(rows))
        assert tokens.tolist() == [expected[row][step] for row in rows], (step, rows)


def test_a_filter_beside_top_p_is_drawn_jointly_beside_any_row(sampler, logits):
    """A row's order does not follow from the filters of its neighbours."""
    request, positions = asking({"epsilon_cutoff": 0.01}, top_p=0.6, sampling_seed=5), list(range(300))
    alone, _ = draw(sampler, logits[[0] * 300], info_of(*[request] * 300), positions)
    both, _ = draw(sampler, logits[[0] * 301], info_of(*[request] * 300, Request(top_k=3)), [*positions, 9])
    assert alone.tolist() == both.tolist()[:300]


def test_bad_rules_are_refused_when_the_request_is_taken():
    """With the words of ``read_rules``, all of which test_vllm_rules.py has."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what SGLang answers with
        asking({"p_les": 1}).sampling_params.verify(V)
    assert str(caught.value) == (
        "custom_params['tokendraw'] needs names of filters or parameters, found 'p_les', the nearest is 'p_less'. "
        "Correct it."
    )
    asking({"p_less": 1}).sampling_params.verify(V)
    Request(custom_params={"thinking_budget": 3}).sampling_params.verify(V)


def test_rules_without_the_backend_are_refused():
    with (
        backend("pytorch"),
        pytest.raises(ValueError, match="needs --sampling-backend tokendraw, found pytorch"),
    ):
        asking({"p_less": 1}).sampling_params.verify(V)


def test_sglangs_own_refusals_stay():
    params = asking({"p_les": 1}).sampling_params
    params.temperature = -1.0
    with pytest.raises(ValueError, match="non-negative"):
        params.verify(V)
