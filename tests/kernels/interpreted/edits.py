"""Edits of logits by triton-gumbel on CPU tensors, in Triton's interpreter: findings, and numbers of wrong elements."""

from dataclasses import replace
from itertools import islice, product

import numpy as np
import torch

import edit_model
from calling import loaded, selection_of
from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw.calls.warmup import Batches
from tokendraw.edits.process import Process
from tokendraw.plugin import ProcessNeed
from tokendraw_native.logits_processing import NativeProcessor
from tokendraw_testing import Effort, Subject
from tokendraw_testing.kit.fuzz import FuzzCase, check_case
from tokendraw_triton_gumbel import edit_launches, plugin
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def use_small_programs():
    edit_launches.CONFIG = edit_launches.ProcessConfig(
        IDS=8, WORDS=4, TILE=32, REQUESTS=2, TOKENS=8, LANES=4, PLACES=2
    )
    edit_launches._PROGRAMS, edit_launches._MASK_PROGRAMS = 24, 16
    edit_launches._SEARCH_PROGRAMS = 20


def fuzz(cases):
    """Run random cases of the kit by small programs, so that several share each row and take turns."""
    use_small_programs()
    offered = plugin.tokendraw_describe().operations["process_logits"]
    offered = replace(offered, device_types=("cpu",), compute_capability=None, max_vocab_size=300)
    subject = Subject(
        "triton-gumbel",
        capabilities={"process_logits": offered},
        device=CPU,
        build=lambda operation, need: TritonLogitsProcessor(CPU),
        effort=Effort.tiny(),
    )
    results = [check_case(subject, FuzzCase("process_logits", number)) for number in range(int(cases))]
    return {
        "wrong": [result.finding.detail for result in results if result.finding],
        "rows": sum(rows for result in results for _, rows in result.looked),
    }


def appends(seed):
    """Append random tokens by the launch and by torch; return the number of tables that differ."""
    rng, append, differences = np.random.default_rng(int(seed)), TritonLogitsProcessor(CPU).append, 0
    limit, vocab_size, ids = 9, 12, [0, 1, 2, 11, 12, 50, -1, -7, 2**31 - 1]
    for dtypes in product((torch.int64, torch.int32), repeat=2):
        for width in (None, 1, 4):
            by_launch, by_torch = (RequestSlots(5, limit, vocab_size) for _ in range(2))
            for slots in (by_launch, by_torch):
                slots.add(0, SamplingParams(bad_words=[[3, 1]], logit_bias={2: 1.0}), [1, 1, 50])
                slots.add(1, SamplingParams(min_tokens=2, stop_token_ids=[0]), [], [2])
                slots.add(3, SamplingParams(), [5] * (limit - 1))
            for _ in range(6):
                rows = torch.tensor(rng.permutation([-1, 0, 1, 2, 3, 5]), dtype=dtypes[0])
                shape = len(rows) if width is None else (len(rows), width)
                tokens = torch.tensor(rng.choice(ids, shape), dtype=dtypes[1])
                append(by_launch.tables, rows, tokens)
                by_torch._histories.append(rows, tokens)
                for name, table in vars(by_torch.tables).items():
                    pair = torch.stack((getattr(by_launch.tables, name), table))
                    if name == "distinct":  # in any order
                        pair = pair.sort(2).values
                    differences += not torch.equal(*pair)
    return differences


def warmup():
    """Make every seventh call of a warmup, and count the calls."""
    processor, result = TritonLogitsProcessor(CPU), 0
    batches = Batches(CPU, 40, dtypes=[torch.float32], batch_sizes=[2])
    selection = selection_of(loaded("triton", processor), operation="process_logits")
    ((_, _, parts),) = batches.edited(Process, RequestSlots, [torch.int64], 1, True, selection)
    for (call,) in islice(parts, 0, None, 7):
        call.check(CPU, ProcessNeed())
        call.run(processor)
        result += 1
    return result


def families():
    """Edit by requests with a single list, and compare with native."""
    native, result = NativeProcessor(), {}
    for field, value in {
        "logit_bias": {3: 1.0},
        "allowed_token_ids": [1, 69],
        "bad_words": [[4]],
        "stop_token_ids": [5],
        "repetition_penalty": 1.5,
    }.items():
        slots = RequestSlots(3, 8, 70)
        slots.add(1, SamplingParams(**{field: value}, min_tokens=1), [2])
        needed, logits, rows = torch.ones(2, 70), torch.ones(2, 70), torch.tensor([1, 0])
        native.process(needed, slots, rows)
        TritonLogitsProcessor(CPU).process(logits, slots, rows)
        result[field] = [int((logits != needed).sum()), int((logits != 1).sum())]
    return result


def long_lists():
    """Edit by lists longer than what a program holds at once, behind as many drafts, and compare with native."""
    use_small_programs()
    params = SamplingParams(
        presence_penalty=0.5,
        logit_bias=dict.fromkeys(range(9), 1.0),
        bad_words=[[token] for token in range(10, 22)],
        stop_token_ids=list(range(30, 41)),
        min_tokens=40,
    )
    slots = RequestSlots(2, 60, 70, max_bias=16, max_stop_ids=16, max_bad_words=16)
    slots.add(1, params, [2], [*range(42, 52)])
    drafts, rows = Drafts.from_lists([[*range(52, 65)]]), torch.tensor([1])
    needed, logits = torch.ones(14, 70), torch.ones(14, 70)
    NativeProcessor().process(needed, slots, rows, None, drafts)
    TritonLogitsProcessor(CPU).process(logits, slots, rows, None, drafts)
    return [int((logits != needed).sum()), int((needed[-1] != 1).sum())]


def repeating_tokens(rng, kind, count, vocab_size):
    """Return tokens that repeat themselves in a way that asks something of a search for repetitions."""
    a, b = rng.choice(vocab_size, 2, replace=False).tolist()
    period = int(rng.choice([rng.integers(1, 40), 300]))
    tokens = {
        "random": lambda: rng.integers(0, vocab_size, count),
        "few ids": lambda: rng.integers(0, min(vocab_size, 5), count),
        "one token": lambda: np.full(count, a),
        "two tokens": lambda: rng.choice([a, b], count),
        "a period": lambda: np.resize(rng.integers(0, vocab_size, period), count),
        "a period of two tokens": lambda: np.resize(rng.choice([a, b], period), count),
        "a b x": lambda: np.stack(
            [np.full(count, a), np.full(count, b), rng.integers(0, vocab_size, count)], 1
        ).ravel()[:count],
        "runs": lambda: np.repeat(rng.choice([a, b], count), rng.integers(1, 9, count))[:count],
    }[kind]()
    tokens = tokens.copy()
    for _ in range(int(rng.choice([0, 0, 1, 3]))):
        tokens[rng.integers(count)] = rng.choice([-1, vocab_size, a, b])
    return tokens.tolist()


KINDS = (
    "random",
    "few ids",
    "one token",
    "two tokens",
    "a period",
    "a period of two tokens",
    "a b x",
    "runs",
)


def repetitions(seed, count, small):
    """Edit by windows and DRY behind repeating tokens and drafts; return the rows that differ from native's."""
    if small == "small":
        use_small_programs()
    rng, wrong, edited = np.random.default_rng(int(seed)), [], 0
    for number in range(int(count)):
        vocab_size, limit = int(rng.choice([3, 12, 400, 5000])), int(rng.choice([20, 90, 700]))
        slots = RequestSlots(len(KINDS), limit, vocab_size)
        drafted = []
        for slot, kind in enumerate(KINDS):
            length = int(rng.integers(1, limit + 1))
            tokens = repeating_tokens(rng, kind, length + 8, vocab_size)
            num_prompt, allowed_length = int(rng.integers(length + 1)), int(rng.choice([0, 1, 2, 5]))
            ids = [token for token in tokens if 0 <= token < vocab_size] or [0]
            fields = {
                "dry_multiplier": float(rng.choice([0.0, 0.8])),
                "dry_base": float(rng.choice([1.0, 1.001, 1.75, 3.0])),
                "dry_allowed_length": allowed_length,
                "dry_penalty_last_n": int(rng.choice([-1, -1, rng.integers(1, limit)])),
                "dry_sequence_breakers": rng.choice(ids, int(rng.choice([0, 0, 1, 9]))).tolist(),
                "repetition_penalty": float(rng.choice([1.0, 1.5])),
                "frequency_penalty": float(rng.choice([0.0, 0.25])),
                "penalty_last_n": int(rng.choice([-1, rng.integers(1, limit + 1)])),
                "logit_bias": dict.fromkeys(rng.choice(ids, int(rng.choice([0, 2]))).tolist(), 1.0),
            }
            slots.add(slot, SamplingParams(**fields), tokens[:num_prompt], tokens[num_prompt:length])
            drafted.append(tokens[length : length + int(rng.integers(4))])
        drafts = Drafts.from_lists(drafted) if rng.random() < 0.5 else None
        rows = len(KINDS) + (0 if drafts is None else sum(map(len, drafted)))
        given, row_index = (
            torch.from_numpy(rng.normal(size=(rows, vocab_size))).float(),
            torch.arange(len(KINDS)),
        )
        needed, logits = given.clone(), given.clone()
        NativeProcessor().process(needed, slots, row_index, None, drafts)
        TritonLogitsProcessor(CPU).process(logits, slots, row_index, None, drafts)
        edited += int((needed != given).any(1).sum())
        wrong += [[number, row] for row in (logits != needed).any(1).nonzero().ravel().tolist()]
    return {"wrong": wrong, "edited": edited}


def long_histories():
    """Edit by a window and a match of several thousand tokens; count ids that differ from native's, and edited ones.

    A lane then has more places than the end of the history has known matches with itself.
    """
    rng, vocab_size, count = np.random.default_rng(5), 40_000, 6000
    slots = RequestSlots(2, count, vocab_size)
    window = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.25, penalty_last_n=5000)
    slots.add(0, window, rng.integers(0, vocab_size, count // 2), rng.integers(0, vocab_size, count // 2))
    match = SamplingParams(dry_multiplier=0.5, dry_base=1.001, dry_allowed_length=1)
    slots.add(1, match, np.resize(rng.integers(0, vocab_size, 300), count))
    needed, logits = torch.ones(2, vocab_size), torch.ones(2, vocab_size)
    NativeProcessor().process(needed, slots, torch.arange(2))
    TritonLogitsProcessor(CPU).process(logits, slots, torch.arange(2))
    return [int((logits != needed).sum()), *(needed != 1).sum(1).tolist()]


def masks(tile):
    """Apply masks by small programs to rows of every alignment."""
    edit_launches.CONFIG = edit_launches.CONFIG._replace(TILE=int(tile))
    edit_launches._MASK_PROGRAMS = 6
    process, result = TritonLogitsProcessor(CPU).process, {}
    for dtype in DTYPES:
        for case in edit_model.cases(dtype, int(tile)):
            result[str(case)] = case.wrong(process, CPU)
    return result


def full_slots():
    """Edit by windows, DRY and lists in slots that are full; return the number of calls."""
    use_small_programs()
    rng, size, vocab_size = np.random.default_rng(11), 40, 300
    shared = {"repetition_penalty": 1.2, "logit_bias": {3: 1.0}, "bad_words": [[5, 6]], "stop_token_ids": [7]}
    requests = [
        SamplingParams(**shared, penalty_last_n=39),
        SamplingParams(**shared, penalty_last_n=-1, dry_multiplier=1.0),
        SamplingParams(frequency_penalty=0.5, penalty_last_n=40, dry_multiplier=1.0),
    ]
    slots = RequestSlots(len(requests), size, vocab_size, device=CPU)
    for slot, params in enumerate(requests):
        tokens = torch.from_numpy(rng.integers(0, vocab_size, size))
        slots.add(slot, params, tokens[:10], tokens[10:])
    for dtype in DTYPES:
        logits = torch.randn(len(requests), vocab_size).to(dtype)
        TritonLogitsProcessor(CPU).process(logits, slots, torch.arange(len(requests)))
    return len(DTYPES)
