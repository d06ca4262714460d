"""Every refusal of the command line that depends on the arguments alone: message, exit code, and the same in JSON."""

import json

import numpy as np
import pytest

import tokendraw
from command_line import NATIVE_ON_CPU, call
from fake_dists import ONE_OF_THE_OPERATIONS

INSTALLED = ", ".join(candidate.name for candidate in tokendraw.discover())
WHOLE = "Leave it out: the text is printed when all of it is drawn."
SAMPLE = ("sample", "logits.npy", *NATIVE_ON_CPU)
GENERATE = ("generate", "The cat", *NATIVE_ON_CPU)
CHECK = ("check", "native", "--device", "cpu")
FILTER = ("check", "--filter", "p_less", "--device", "cpu")


def out_of_range(option, value, need):
    return (*SAMPLE, option, value), f"'{option}' needs {need}, found {value}."


USAGE = [
    # What an operation may need
    (
        ("resolve", "--need", "vocab_size"),
        "'--need' needs FIELD=VALUE, found 'vocab_size'. Pass --need vocab_size=VALUE.",
    ),
    (
        ("resolve", "--need", "vocab_size=many"),
        "'vocab_size' of Need needs an integer >= 1 or None, found 'many'. Give one.",
    ),
    (
        ("resolve", "--need", "logprob_ranks=maybe"),
        "'logprob_ranks' of Need needs True or False, found 'maybe'. Give one.",
    ),
    (
        ("resolve", "--need", "dtype=float61"),
        "'dtype' of Need needs 'float32', 'bfloat16', 'float16' or None, found 'float61'. "
        "Pass 'float16', the nearest.",
    ),
    *[
        (
            ("resolve", *options, "--need", "dtype=float16"),
            "'--need' needs each field once, found 'dtype' twice. Leave one out.",
        )
        for options in (("--dtype", "float16"), ("--need", "dtype=float32"))
    ],
    (
        ("resolve", "--operation", "plan_paged_kv"),
        f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'plan_paged_kv', which the distribution "
        "tokendraw-engine-ops brings; run `pip install ./engine_ops` in tokendraw's checkout.",
    ),
    (
        ("resolve", "--operation", "process_logits", "--seeding", "counter"),
        "'--seeding' is no part of what 'process_logits' may need. Leave it out.",
    ),
    (
        ("resolve", "--vocab-parallel"),
        "'--vocab-parallel' was removed. Gather the logits of the ranks and draw from whole rows.",
    ),
    # check
    (
        (*CHECK, "--operation", "draft"),
        f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'draft'. Pass one of these.",
    ),
    (
        (*CHECK, "--only", "outputs"),
        "'--only' needs the name of a property, found 'outputs'. Nearest: 'output', 'score output' or 'verify output'.",
    ),
    (
        (*CHECK, "--only", "?"),
        "'--only' needs the name of a property, found '?'. See `tokendraw check --list`.",
    ),
    (
        ("check", "native", "--list"),
        "'--list' prints the properties of every sampler. Leave out it, or NAME.",
    ),
    (("check",), "Missing argument 'NAME'."),
    ((*CHECK, "--seed", "-1"), "Invalid value for '--seed': -1 is not in the range x>=0."),
    ((*CHECK, "--jobs", "0"), "Invalid value for '--jobs': 0 is not in the range x>=1."),
    ((*CHECK, "--fuzz", "0"), "Invalid value for '--fuzz': 0.0 is not in the range x>0."),
    (
        (*CHECK, "--fuzz", "1", "--operation", "score"),
        "'--fuzz' needs an operation that the kit has random cases of, found score. Check its properties instead.",
    ),
    (
        (*CHECK, "--fuzz", "9", "--only", "tails"),
        "'--only' picks properties, which random cases are in place of. Leave out one of them.",
    ),
    (
        (*CHECK, "--fuzz", "9", "--fuzz-case", "0:0"),
        "'--fuzz-case' looks at one case, '--fuzz' at new ones. Leave out one of them.",
    ),
    (
        (*CHECK, "--kept-sets"),
        "'--kept-sets' is of random rows. Add '--fuzz SECONDS'.",
    ),
    (
        (*CHECK, "--kept-sets", "--fuzz", "9", "--jobs", "2"),
        "'--kept-sets' makes no page and one process. Leave out '--html' and '--jobs'.",
    ),
    (
        (*CHECK, "--fuzz-case", "0:0", "--seed", "3"),
        "'--fuzz-case' begins with the seed. Leave out '--seed'.",
    ),
    (
        (*CHECK, "--fuzz-case", "17"),
        "Invalid value for '--fuzz-case': '17' needs the form SEED:NUMBER, such as 0:17.",
    ),
    (
        (*CHECK, "--operation", "process_logits", "--gumbel-dtype", "fp64"),
        "'--gumbel-dtype' is no part of what 'process_logits' may need. Leave out one of them.",
    ),
    ((*FILTER, "--value", "2"), "'filters': 'p_less' needs 0 (off) or 1 (on), found 2.0."),
    (
        (*FILTER, "--definition", "here"),
        "'--definition' needs FILE:FUNCTION with a Python file, such as definition.py:kept, found 'here'.",
    ),
    (
        (*FILTER, "--fuzz", "3"),
        "'--fuzz' is about samplers, '--filter' about a filter. Leave out one of them.",
    ),
    ((*CHECK, "--value", "1"), "'--value' is about '--filter'. Add '--filter NAME', or leave it out."),
    # bench
    (("bench", "--drafts", "4"), "'--drafts' is about drafts to verify. Add --op verify, or leave it out."),
    (
        ("bench", "--preset", "cliffs", "--op", "verify"),
        "'--op' is about a grid of cells. Leave out --preset cliffs, or leave it out.",
    ),
    (
        ("bench", "--preset", "cliffs", "--unseeded"),
        "'--unseeded' is about a grid of cells. Leave out --preset cliffs, or leave it out.",
    ),
    (("bench", "--sweep", "top-k"), "'--sweep' is about sweeps. Add --preset cliffs, or leave it out."),
    (
        ("bench", "--preset", "design", "--small"),
        "'--small' is about sweeps. Add --preset cliffs, or leave it out.",
    ),
    (
        ("bench", "--output", "none/table.md"),
        "'--output' needs a file in a folder that exists, found 'none/table.md'. Make the folder 'none'.",
    ),
    # sample and generate
    out_of_range("--temperature", "-1.0", "a finite number >= 0"),
    out_of_range("--temperature", "nan", "a finite number >= 0"),
    out_of_range("--top-k", "-2", "an integer >= -1 (0 and -1: off)"),
    out_of_range("--top-p", "0.0", "a number in (0, 1] (1: off)"),
    out_of_range("--min-p", "1.5", "a number in [0, 1] (0: off)"),
    out_of_range("--seed", str(2**64), "an integer in [-2**63, 2**64)"),
    (
        (*SAMPLE, "--seed", "1", "--sequence", "--position", str(2**63 - 1)),
        f"'--position' of row 1 needs an integer >= 0, found {2**63}.",
    ),
    ((*SAMPLE, "--logprobs", "-2"), "Invalid value for '--logprobs': -2 is not in the range x>=-1."),
    (
        (*SAMPLE, "--position", "-1"),
        "Invalid value for '--position': -1 is not in the range 0<=x<=9223372036854775807.",
    ),
    (("generate", "The", "--top-p", "2.0"), "'--top-p' needs a number in (0, 1] (1: off), found 2.0."),
    (
        (*GENERATE, "--compare"),
        "'--compare' was removed. Run it once for each setting, with the same --seed.",
    ),
    ((*GENERATE, "--stream"), f"'--stream' was removed. {WHOLE}"),
    ((*GENERATE, "--no-stream"), f"'--no-stream' was removed. {WHOLE}"),
    (
        (*GENERATE, "--show-chain"),
        "'--show-chain' was removed. tokendraw.kept_ids lists what a row keeps.",
    ),
    (
        (*GENERATE, "--samplers", "top_k;temperature"),
        "'--samplers' was removed. Name the filters, and the order by --filter-order.",
    ),
    (
        (*GENERATE, "--filter", "top_n_sigma"),
        "Invalid value for '--filter': 'top_n_sigma' needs the form NAME=VALUE, such as top_n_sigma=1.0.",
    ),
    # new
    (
        ("new", "acme", "out", "--operation", "process_logits"),
        "'--operation' was removed. 'tokendraw new' writes a sampler; for another operation start from "
        "tokendraw-native's code, see docs/plugin-authors.md.",
    ),
]
FAILURES = [
    (
        ("check", "nativ"),
        "'nativ' needs to be an installed sampler, found native. Try: tokendraw check native",
    ),
    (
        (*FILTER, "nativ"),
        "'nativ' needs to be an installed sampler, found native. Try: tokendraw check native",
    ),
    (
        ("check", "--filter", "p_les"),
        "'--filter' needs an installed filter, found 'p_les', the nearest is 'p_less'. Correct it.",
    ),
    (
        ("show", "nativ"),
        "'nativ' needs to be an installed sampler or filter, found native, epsilon_cutoff, eta_cutoff, p_less and "
        "top_n_sigma. Try: tokendraw show native",
    ),
    (
        ("show", "top-n-sgma"),
        "'top-n-sgma' needs to be an installed sampler or filter, found native, epsilon_cutoff, eta_cutoff, p_less "
        "and top_n_sigma. Try: tokendraw show top_n_sigma",
    ),
    (("check", "greedy"), "'greedy' needs to be an installed sampler, found native. Try: tokendraw list"),
    (
        ("bench", "--sampler", "nativ"),
        f"'nativ' needs to be an installed sampler or a baseline, found {INSTALLED}, torch-sort, "
        "flashinfer-direct and flashinfer-unfused. Try: tokendraw bench --sampler native",
    ),
    (("sample", "not-there.npy"), "'not-there.npy' needs to be a file, found nothing there. Check the path."),
    (
        ("sample", "logits.npy", "--tensor", "b"),
        "'logits.npy' holds one array without a name, but 'b' was asked for. Leave --tensor out.",
    ),
    (
        ("new", "acme", "."),
        "'DIR' needs a folder that is empty or not there, found '.', one with files in it. Choose another.",
    ),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("logits.npy", np.zeros((2, 5), np.float32))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [(arguments, code, text) for code, cases in ((2, USAGE), (1, FAILURES)) for arguments, text in cases],
    ids=str,
)
def test_a_refusal_is_one_sentence_an_exit_code_and_an_object(arguments, exit_code, message, folder):
    plain, in_json = call(*arguments), call(*arguments, "--json")
    for result in (plain, in_json):
        assert result.stderr.splitlines()[-1].removeprefix("Error: ") == message
        assert (result.stderr, result.exit_code) == (plain.stderr, exit_code)
    assert plain.stdout == ""
    assert json.loads(in_json.stdout) == {"schema_version": 1, "error": message}
    assert [path.name for path in folder.iterdir()] == ["logits.npy"]
