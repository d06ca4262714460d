"""``tokendraw list``, ``show`` and ``resolve``: the complete output, explanations and refusals."""

import json
from dataclasses import asdict, replace

import pytest

import tokendraw
from command_line import BOOM, FUTURE, OFF, be_on, call
from fake_candidates import AITER, ALL, FLASHINFER, H100, LAPTOP, NATIVE
from tokendraw import Need
from tokendraw.cli import terminal
from tokendraw.plugin import Capabilities, HostCapabilities, ProcessCapabilities, Release, VerifyCapabilities
from tokendraw_engine_ops.operations import Sm90W4Capabilities

FILTERS = (
    "\n"
    "filter          state      moments              what it keeps, or why it cannot\n"
    "epsilon_cutoff  available  log_mass             Keep tokens with a probability of at least e.\n"
    "eta_cutoff      available  log_mass, entropy    Keep tokens with p >= min(e, sqrt(e) exp(-entropy)).\n"
    "p_less          available  log_mass, collision  "
    "Keep tokens with p >= sum p^2, the probability that two draws agree.\n"
    "top_n_sigma     available  std                  Keep tokens at most n standard deviations below the largest.\n"
)


def test_list_shows_every_sampler_with_the_whole_reason(monkeypatch):
    be_on(monkeypatch, H100, (*ALL, BOOM, FUTURE, OFF))
    result = call("list")
    assert result.stdout == (
        "name           state         priority  version  what it does, or why it cannot\n"
        "flashinfer     available     80        0.1.0\n"
        "triton-gumbel  available     60        0.1.0\n"
        "native         available     0         0.1.0\n"
        "aiter          unavailable   70        0.1.0    needs a rocm device, found cuda\n"
        "future         incompatible  10        9.9      needs plugin API 99, found 1; upgrade tokendraw\n"
        "boom           broken                  2.0      loading 'boom:plugin' raised ImportError: cannot "
        "import name 'kernels' [see the notes] from 'boom_kernels', which is a long story\n"
        "off            disabled                1.0      switched off by TOKENDRAW_DISABLE\n"
        "\n"
        "name           operations\n"
        "flashinfer     sample\n"
        "triton-gumbel  sample\n"
        "native         sample\n"
        "aiter          sample\n" + FILTERS
    )
    assert (result.stderr, result.exit_code) == ("", 0)


def test_on_a_terminal_the_reasons_are_folded_to_its_width(monkeypatch):
    be_on(monkeypatch, H100, (NATIVE, BOOM))
    monkeypatch.setattr(terminal, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "90")
    output = call("list").stdout
    assert output.partition("\nfilter ")[0] == (
        "name    state      priority  version  what it does, or why it cannot\n"
        "native  available  0         0.1.0\n"
        "boom    broken               2.0      loading 'boom:plugin' raised ImportError: cannot\n"
        "                                      import name 'kernels' [see the notes] from\n"
        "                                      'boom_kernels', which is a long story\n"
        "\n"
        "name    operations\n"
        "native  sample\n"
    )


def test_list_shows_the_operations_of_every_plugin_whichever_is_asked_for(monkeypatch):
    planner = HostCapabilities(device_types=("cpu",))
    # A plugin may offer what this core does not know.
    capabilities = {
        "paint": planner,
        "process_logits": ProcessCapabilities(device_types=("cpu",)),
        "verify": VerifyCapabilities(),
        **NATIVE.info.operations,
    }
    both = replace(NATIVE, info=replace(NATIVE.info, operations=capabilities))
    be_on(monkeypatch, LAPTOP, (both, FLASHINFER, OFF))
    assert call("list", "--operation", "process_logits").stdout == (
        "name        state        priority  version  what it does, or why it cannot\n"
        "native      available    0         0.1.0\n"
        "flashinfer  unavailable  80        0.1.0    needs the operation process_logits, found sample\n"
        "off         disabled               1.0      switched off by TOKENDRAW_DISABLE\n"
        "\n"
        "name        operations\n"
        "native      sample, verify, process_logits, paint\n"
        "flashinfer  sample\n" + FILTERS
    )


def test_list_with_nothing_installed_says_what_to_install(monkeypatch):
    be_on(monkeypatch, LAPTOP, ())
    result = call("list")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert (
        result.stderr
        == "No sampler is installed; run `pip install ./plugins/native` in tokendraw's checkout.\n"
    )


NATIVE_CAPABILITIES = {
    "device_types": None,
    "compute_capability": None,
    "rocm_archs": None,
    "min_sm_count": 0,
    "dtypes": ["float32", "bfloat16", "float16"],
    "logprobs_modes": [
        "raw_logprobs",
        "raw_logits",
        "processed_logprobs",
        "processed_logits",
        "temperature_logprobs",
    ],
    "logprob_token_ids": True,
    "filters": dict.fromkeys(["top_k", "top_p", "min_p", "typical_p", "xtc"], "per_row"),
    "row_moments": ["count", "mean", "std", "log_mass", "entropy", "collision"],
    "filter_orders": ["top_k_first", "joint", "temperature_last"],
    "tie_rule": "value",
    "seeding": "counter",
    "greedy": True,
    "gumbel_dtypes": ["fp32", "fp64"],
    "valid_flag": True,
    "threshold": True,
    "graph_safe": True,
    "sync_free": True,
    "batch_invariant": True,
    "max_top_k": None,
    "max_vocab_size": None,
    "compiles_on_demand": False,
}


def test_list_json_is_complete(monkeypatch):
    be_on(monkeypatch, LAPTOP, (BOOM, NATIVE))
    result = call("list", "--json")
    written = json.loads(result.stdout)
    written.pop("operations")  # tests/operations/test_third_operation.py has them
    assert [each["name"] for each in written["filters"]] == [
        "epsilon_cutoff",
        "eta_cutoff",
        "p_less",
        "top_n_sigma",
    ]
    assert written.pop("filters")[-1] == {
        "name": "top_n_sigma",
        "state": "available",
        "reason": None,
        "distribution": "tokendraw",
        "version": tokendraw.__version__,
        "entry_point": "tokendraw.filters.shipped:TopNSigma",
        "moments": ["std"],
        "summary": "Keep tokens at most n standard deviations below the largest.",
    }
    assert written == {
        "schema_version": 1,
        "error": None,
        "candidates": [
            {
                "name": "native",
                "state": "available",
                "reason": None,
                "priority": 0,
                "summary": "",
                "distribution": "tokendraw-native",
                "version": "0.1.0",
                "entry_point": "tokendraw_native:plugin",
                "first_party": True,
                "verified": "",
                "kernels": "",
                "api_version": 1,
                "upstream": None,
                "operations": {"sample": NATIVE_CAPABILITIES},
            },
            {
                "name": "boom",
                "state": "broken",
                "reason": BOOM.reason,
                "priority": 0,
                "summary": None,
                "distribution": "boom-tokendraw",
                "version": "2.0",
                "entry_point": "boom:plugin",
                "first_party": False,
                "verified": None,
                "kernels": None,
                "api_version": None,
                "upstream": None,
                "operations": None,
            },
        ],
    }
    assert (result.stderr, result.exit_code) == ("", 0)


def test_show_tells_everything_about_a_sampler(monkeypatch):
    info = replace(
        FLASHINFER.info,
        summary="FlashInfer's kernels",
        verified="H100, torch 2.11",
        kernels="prebuilt, in flashinfer-python 0.7.2.post1",
    )
    be_on(monkeypatch, LAPTOP, (NATIVE, replace(FLASHINFER, info=info)))
    result = call("show", "flashinfer")
    assert result.stdout == (
        "flashinfer\n"
        "  summary       FlashInfer's kernels\n"
        "  state         unavailable\n"
        "  reason        needs a cuda device, found cpu\n"
        "  distribution  tokendraw-flashinfer 0.1.0, first-party\n"
        "  entry point   tokendraw_flashinfer:plugin\n"
        "  plugin API    1, this core speaks 1\n"
        "  priority      80\n"
        "  upstream      flashinfer-python\n"
        "    required    >=0.6.7,<0.8\n"
        "    installed   0.7.2.post1\n"
        "    tested      0.6.11.post2, 0.7.2.post1\n"
        "  kernels       prebuilt, in flashinfer-python 0.7.2.post1\n"
        "  verified on   H100, torch 2.11\n"
        "\n"
        "operation sample\n"
        "  device types        cuda\n"
        "  compute capability  7.5 to 12.1\n"
        "  ROCm architectures  any\n"
        "  least SMs           17\n"
        "  dtypes of logits    float32, bfloat16, float16\n"
        "  logprobs modes      none\n"
        "  logprob token ids   no\n"
        "  filters             top_k per row, top_p per row, min_p per row\n"
        "  row moments         none\n"
        "  filter orders       top_k_first, joint\n"
        "  tie rule            value\n"
        "  seeding             launch\n"
        "  greedy              no\n"
        "  gumbel dtypes       fp32\n"
        "  valid flag          yes\n"
        "  graph safe          yes\n"
        "  sync free           yes\n"
        "  threshold           no\n"
        "  batch invariant     no\n"
        "  largest top-k       no limit\n"
        "  largest vocabulary  no limit\n"
        "  compiles on demand  no\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


TABLE = (
    Release("0", "returns no flag", refused=True),
    Release("0.6.7", "returns a flag"),
    Release("0", "draws one way", "sample"),
    Release("0.7.1", "draws two ways", "sample", change="nothing"),
)


def with_table(installed, **in_files):
    upstream = replace(FLASHINFER.info.upstream, releases=TABLE, found=in_files)
    return replace(FLASHINFER, info=replace(FLASHINFER.info, upstream=upstream), upstream_version=installed)


@pytest.mark.parametrize(
    ("installed", "in_files", "marks"),
    [
        ("0.7.2", {}, ("", " (installed)", "", " (installed)")),
        ("0.7.0+cu130", {}, ("", " (installed)", " (installed)", "")),
        ("0.7.0", {"sample": "draws two ways"}, ("", " (installed)", "", " (installed, by its files)")),
        ("0.6.6", {}, (" (installed)", "", " (installed)", "")),
        (None, {}, ("", "", "", "")),
        ("nightly", {}, ("", "", "", "")),
    ],
)
def test_show_lists_what_is_known_of_the_upstream_by_version(monkeypatch, installed, in_files, marks):
    be_on(monkeypatch, H100, (with_table(installed, **in_files),))
    text = call("show", "flashinfer").stdout
    assert (
        "\n\nflashinfer-python by version\n"
        "  since  operation  decision  what it does\n"
        f"  0      all        refused   returns no flag{marks[0]}\n"
        f"  0.6.7  all        used      returns a flag{marks[1]}\n"
        f"  0      sample     used      draws one way{marks[2]}\n"
        f"  0.7.1  sample     used      draws two ways{marks[3]}\n"
        "\noperation sample\n"
    ) in text
    (candidate,) = json.loads(call("show", "flashinfer", "--json").stdout)["candidates"]
    assert candidate["upstream"]["found"] == in_files
    assert candidate["upstream"]["releases"][0] == {
        "since": "0",
        "says": "returns no flag",
        "operation": None,
        "refused": True,
        "change": "",
    }


def test_show_gives_each_operation_its_own_table(monkeypatch):
    operations = {"sample": Capabilities(compute_capability=((8, 0), None)), "verify": VerifyCapabilities()}
    be_on(monkeypatch, LAPTOP, (replace(NATIVE, info=replace(NATIVE.info, operations=operations)),))
    lines = call("show", "native").stdout.splitlines()
    assert [line for line in lines if line.startswith("operation")] == [
        "operation sample",
        "operation verify",
    ]
    assert [line.split("  ")[-1] for line in lines if "compute capability" in line] == [
        "8.0 or later",
        "any",
    ]


def test_show_of_a_sampler_that_never_described_itself(monkeypatch):
    be_on(monkeypatch, LAPTOP, (BOOM,))
    result = call("show", "boom")
    assert result.stdout == (
        "boom\n"
        "  state         broken\n"
        "  reason        loading 'boom:plugin' raised ImportError: cannot import name 'kernels' [see the "
        "notes] from 'boom_kernels', which is a long story\n"
        "  distribution  boom-tokendraw 2.0, third-party\n"
        "  entry point   boom:plugin\n"
    )
    assert result.exit_code == 0


def test_show_does_not_trust_the_description_of_another_plugin_api(monkeypatch):
    be_on(monkeypatch, LAPTOP, (replace(FUTURE, info=replace(FUTURE.info, operations="of another kind")),))
    assert call("show", "future").stdout == (
        "future\n"
        "  state         incompatible\n"
        "  reason        needs plugin API 99, found 1; upgrade tokendraw\n"
        "  distribution  future-tokendraw 9.9, third-party\n"
        "  entry point   future:plugin\n"
        "  plugin API    99, this core speaks 1\n"
    )
    (candidate,) = json.loads(call("show", "future", "--json").stdout)["candidates"]
    assert (candidate["api_version"], candidate["operations"], candidate["upstream"]) == (99, None, None)


def test_show_tells_of_every_distribution_that_claims_the_name(monkeypatch):
    rival = replace(BOOM, name="native", distribution="rival-tokendraw")
    be_on(monkeypatch, LAPTOP, (rival, NATIVE))
    candidates = json.loads(call("show", "native", "--json").stdout)["candidates"]
    assert [(c["distribution"], c["state"]) for c in candidates] == [
        ("tokendraw-native", "available"),
        ("rival-tokendraw", "broken"),
    ]
    text = call("show", "native").stdout
    assert text.count("distribution  ") == 2
    assert "\n\nnative\n  state         broken\n" in text


def test_show_json_is_the_entry_of_list_json(monkeypatch):
    be_on(monkeypatch, H100)
    listed = json.loads(call("list", "--json").stdout)["candidates"]
    for entry in listed:
        output = json.loads(call("show", entry["name"], "--json").stdout)
        assert output == {"schema_version": 1, "error": None, "candidates": [entry]}


def test_show_json_tells_required_installed_and_tested_upstream(monkeypatch):
    be_on(monkeypatch, H100)
    (candidate,) = json.loads(call("show", "flashinfer", "--json").stdout)["candidates"]
    assert candidate["upstream"] == {
        "distribution": "flashinfer-python",
        "required": ">=0.6.7,<0.8",
        "installed": "0.7.2.post1",
        "tested": ["0.6.11.post2", "0.7.2.post1"],
        "releases": [],
        "found": {},
    }
    assert candidate["operations"]["sample"]["compute_capability"] == ["7.5", "12.1"]


INSTALLED = "aiter, flashinfer, native, triton-gumbel, epsilon_cutoff, eta_cutoff, p_less and top_n_sigma"


@pytest.mark.parametrize(
    ("name", "candidates", "advice"),
    [
        ("flashinfr", ALL, f"{INSTALLED}. Try: tokendraw show flashinfer"),
        ("greedy", ALL, f"{INSTALLED}. Try: tokendraw list"),
        ("native", (), "none; run `pip install ./plugins/native` in tokendraw's checkout."),
    ],
    ids=["the nearest", "the list", "what to install"],
)
def test_show_of_an_unknown_name_advises(monkeypatch, name, candidates, advice):
    be_on(monkeypatch, LAPTOP, candidates)
    result = call("show", name)
    assert (result.stdout, result.exit_code) == ("", 1)
    kind = "sampler or filter" if candidates else "sampler"
    assert result.stderr == f"'{name}' needs to be an installed {kind}, found {advice}\n"


@pytest.mark.parametrize("name", ["top-n-sigma", "top_n_sigma"])
def test_show_finds_a_filter_by_its_name_with_hyphens_too(name):
    assert call("show", name).stdout.startswith("top_n_sigma\n  summary ")


def test_list_warns_of_a_misspelled_choice_that_would_be_an_error(monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "nativ")
    result = call("list")
    assert result.stderr == (
        "'TOKENDRAW_SAMPLER' names 'nativ', found no such plugin, the nearest known one is 'native'. "
        "Correct it, or take it out.\n"
    )
    assert result.exit_code == 0


STRICT = "TOKENDRAW_STRICT=1 makes this warning an error."
H100_LINE = "sample on cuda (H100), compute capability 9.0, 132 SMs"
PASSED_OVER = (
    f"'boom' was passed over: {BOOM.reason}. Using 'flashinfer'. "
    "Set TOKENDRAW_DISABLE=boom to silence this.\n"
)


def test_explain_shows_every_decision_who_serves_what_and_the_settings(monkeypatch):
    be_on(monkeypatch, H100, (*ALL, BOOM, OFF))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "off")
    result = call("resolve", "--explain")
    assert result.stdout == (
        f"{H100_LINE}: flashinfer\n"
        "\n"
        "decisions\n"
        "  flashinfer     available    best available, priority 80\n"
        "  triton-gumbel  available    available, priority 60; serves the rows that flashinfer cannot\n"
        "  native         available    available, priority 0\n"
        "  aiter          unavailable  needs a rocm device, found cuda\n"
        "  boom           broken       loading 'boom:plugin' raised ImportError: cannot import name 'kernels' "
        "[see the notes] from 'boom_kernels', which is a long story\n"
        "  off            disabled     switched off by TOKENDRAW_DISABLE\n"
        "\n"
        "who serves what\n"
        "  flashinfer     all rows but greedy rows, seeded rows, typical_p per row, xtc per row, filters from moments, "
        "filter order temperature_last, rows that ask for raw_logprobs\n"
        "  triton-gumbel  greedy rows, seeded rows, typical_p per row, xtc per row, filters from moments, filter order "
        "temperature_last, rows that ask for raw_logprobs\n"
        "\n"
        "not tried\n"
        "  whether flashinfer and triton-gumbel can be built: `tokendraw doctor` builds what a program gets\n"
        "\n"
        "settings\n"
        "  TOKENDRAW_DISABLE = off\n"
    )
    assert result.stderr == PASSED_OVER.replace("=boom", "=off,boom")
    assert result.exit_code == 0


def test_explain_says_where_nobody_serves_some_rows(monkeypatch):
    operations = {"sample": replace(NATIVE.info.operations["sample"], greedy=False)}
    be_on(monkeypatch, LAPTOP, (replace(NATIVE, info=replace(NATIVE.info, operations=operations)),))
    assert "who serves what\n  native  all rows but greedy rows\n  nobody  greedy rows\n" in (
        call("resolve", "--explain").stdout
    )


def test_every_setting_that_took_part_is_shown(monkeypatch, tmp_path):
    be_on(monkeypatch, H100)
    config = tmp_path / "config.toml"
    config.write_text('sampler = "aiter"\npriority = ["native", "aiter"]\ndisable = ["flashinfer"]\n')
    monkeypatch.setenv("TOKENDRAW_CONFIG", str(config))
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    monkeypatch.setenv("TOKENDRAW_NO_PLUGINS", "1")
    monkeypatch.setenv("TOKENDRAW_STRICT", "true")
    settings = {
        "TOKENDRAW_NO_PLUGINS": "1",
        "TOKENDRAW_STRICT": "1",
        "TOKENDRAW_SAMPLER": "native",
        f"priority in {config}": "native, aiter",
        f"disable in {config}": "flashinfer",
    }
    assert json.loads(call("resolve", "--json").stdout)["settings"] == settings
    # A path may be longer than a line: it wraps.
    text = call("resolve", "--explain").stdout.partition("\nsettings\n")[2]
    assert "".join(text.split()) == "".join(f"{k}={v}" for k, v in settings.items()).replace(" ", "")


def test_a_name_that_no_plugin_has_is_told_of_as_load_sampler_does(monkeypatch):
    be_on(monkeypatch, LAPTOP)
    monkeypatch.setenv("TOKENDRAW_PRIORITY", "nativ")
    text = (
        "'TOKENDRAW_PRIORITY' names 'nativ', found no such plugin, the nearest known one is 'native'. "
        "Correct it, or take it out.\n"
    )
    result = call("resolve")
    assert (result.stdout, result.stderr, result.exit_code) == ("native\n", text, 0)
    assert call("list").stderr == text
    findings = json.loads(call("doctor", "--no-build", "--json").stdout)["findings"]
    assert {"problem": text.strip(), "mend": None} in findings
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    for command in ("resolve", "list"):
        result = call(command)
        assert (result.stdout, result.stderr, result.exit_code) == ("", f"{text.strip()} {STRICT}\n", 1)
    assert call("doctor").exit_code == 1


@pytest.mark.parametrize("options", [(), ("--explain",), ("--json",)])
def test_a_choice_that_cannot_be_honoured_is_an_error(monkeypatch, options):
    be_on(monkeypatch, LAPTOP)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "flashinfer")
    result = call("resolve", *options)
    message = (
        "'flashinfer', asked for by TOKENDRAW_SAMPLER, cannot serve the operation 'sample' on cpu: needs a cuda "
        "device, found cpu. Available here: native. Unset TOKENDRAW_SAMPLER to let tokendraw choose."
    )
    assert (result.stderr, result.exit_code) == (message + "\n", 1)
    if options == ("--json",):
        output = json.loads(result.stdout)
        decided = {d["name"]: d["accepted"] for d in output.pop("decisions")}
        assert decided == {"flashinfer": False, "aiter": False, "triton-gumbel": False, "native": True}
        assert output == {
            "schema_version": 1,
            "operation": "sample",
            "chosen": None,
            "settings": {"TOKENDRAW_SAMPLER": "flashinfer"},
            "error": message,
        }
        return
    assert result.stdout == (
        (
            options
            and "sample: no sampler\n"
            "\n"
            "decisions\n"
            "  flashinfer     unavailable  needs a cuda device, found cpu\n"
            "  aiter          unavailable  needs a rocm device, found cpu\n"
            "  triton-gumbel  unavailable  needs a cuda or rocm device, found cpu\n"
            "  native         available    available, priority 0\n"
            "\n"
            "settings\n"
            "  TOKENDRAW_SAMPLER = flashinfer\n"
        )
        or ""
    )


def test_json_is_complete(monkeypatch):
    be_on(monkeypatch, H100, (NATIVE, BOOM))
    result = call("resolve", "--json")
    assert json.loads(result.stdout) == {
        "schema_version": 1,
        "operation": "sample",
        "chosen": "native",
        "companion": None,
        "partial_companion": None,
        "companion_serves": [],
        "host": {
            "device_type": "cuda",
            "name": "H100",
            "compute_capability": "9.0",
            "rocm_arch": None,
            "sm_count": 132,
            "cuda_version": "12.9",
        },
        "need": asdict(Need()) | {"filter_orders": ["top_k_first"]},
        "choice": {
            "sampler": None,
            "source": "",
            "names": None,
            "priority": [],
            "priority_source": "TOKENDRAW_PRIORITY",
            "disabled": [],
            "disabled_source": "TOKENDRAW_DISABLE",
            "first_party_only": False,
        },
        "decisions": [
            {
                "name": "native",
                "accepted": True,
                "state": "available",
                "reason": "best available, priority 0",
                "priority": 0,
            },
            {"name": "boom", "accepted": False, "state": "broken", "reason": BOOM.reason, "priority": 0},
        ],
        "warnings": [PASSED_OVER.strip().replace("flashinfer", "native")],
        "settings": {},
        "built": False,
        "error": None,
    }
    assert result.exit_code == 0


def test_strict_mode_makes_a_fallback_an_error(monkeypatch):
    be_on(monkeypatch, H100, (*ALL, BOOM))
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    result = call("resolve")
    error = PASSED_OVER.replace(" Using 'flashinfer'.", "").replace("\n", f" {STRICT}\n")
    assert (result.stdout, result.stderr, result.exit_code) == ("", error, 1)


@pytest.mark.parametrize(
    ("options", "need"),
    [
        ("--logprobs-mode processed_logprobs", Need(logprobs_mode="processed_logprobs")),
        ("--filter-order joint", Need(filter_orders=("joint",))),
        ("--filter-order joint --filter-order top_k_first", Need(filter_orders=("joint", "top_k_first"))),
        ("--gumbel-dtype fp64", Need(gumbel_dtype="fp64")),
        ("--dtype bfloat16", Need(dtype="bfloat16")),
        ("--vocab-size 151936", Need(vocab_size=151936)),
        ("--seeding counter", Need(seeding="counter")),
        ("--tie-rule value", Need(tie_rule="value")),
        ("--tie-rule either", Need(tie_rule="either")),
        ("--valid-flag", Need(valid_flag=True)),
        ("--graph-safe", Need(graph_safe=True)),
        ("--sync-free", Need(sync_free=True)),
        ("--threshold", Need(threshold=True)),
        ("--batch-invariant", Need(batch_invariant=True)),
        ("--need max_logprobs=8 --need logprob_ranks=no", Need(max_logprobs=8, logprob_ranks=False)),
        ("--need logprob_ranks=TRUE --need max_logprobs=none", Need()),
        ("--need filter_orders=joint,top_k_first", Need(filter_orders=("joint", "top_k_first"))),
        ("--need filter_orders=joint", Need(filter_orders=("joint",))),
        ("--need tie_rule=either --need dtype=float16", Need(tie_rule="either", dtype="float16")),
        (
            "--need seeding=none --need vocab_size=32000 --need graph_safe=1",
            Need(vocab_size=32000, graph_safe=True),
        ),
    ],
)
def test_every_need_has_an_option_and_can_be_given_by_its_name(monkeypatch, options, need):
    be_on(monkeypatch, LAPTOP, (NATIVE,))
    output = json.loads(call("resolve", "--json", *options.split()).stdout)["need"]
    assert output == json.loads(json.dumps(asdict(need)))


@pytest.mark.parametrize(
    "options", [["--graph-safe", "--sync-free"], ["--need", "graph_safe=yes", "--need", "sync_free=on"]]
)
def test_what_every_operation_may_need_has_an_option(monkeypatch, options):
    processor = ProcessCapabilities(device_types=("cpu",), graph_safe=True, sync_free=True)
    info = replace(NATIVE.info, operations={"process_logits": processor})
    be_on(monkeypatch, LAPTOP, (replace(NATIVE, info=info),))
    real = json.loads(call("resolve", "--operation", "process_logits", "--json", *options).stdout)
    assert (real["chosen"], real["need"]["graph_safe"], real["need"]["sync_free"]) == ("native", True, True)


def test_explain_tells_which_calls_of_another_operation_go_to_whom(dists, monkeypatch):
    dists.add_engine_ops()
    everything = Sm90W4Capabilities(
        device_types=None, formats=("fp4", "int4", "fp4_fp8"), layouts=("v1", "v2"), unpacks=True
    )
    library = replace(
        FLASHINFER.info.upstream,
        releases=(
            Release("0", "packs no layout", "pack_sm90_w4", refused=True),
            Release("0.6.10", "packs layout v1", "pack_sm90_w4"),
        ),
    )
    packer = Sm90W4Capabilities(device_types=("cuda",), formats=("fp4", "int4"), layouts=("v1",))
    installed = (
        replace(NATIVE, info=replace(NATIVE.info, operations={"pack_sm90_w4": everything})),
        replace(
            FLASHINFER,
            info=replace(FLASHINFER.info, operations={"pack_sm90_w4": packer}, upstream=library),
            upstream_version="0.6.11.post2",
        ),
        AITER,
    )
    explain = ("resolve", "--operation", "pack_sm90_w4", "--explain")
    be_on(monkeypatch, H100, installed)
    assert call(*explain).stdout == (
        "pack_sm90_w4 on cuda (H100), compute capability 9.0, 132 SMs: flashinfer\n"
        "\n"
        "decisions\n"
        "  flashinfer  available    best available, priority 80; flashinfer-python 0.6.11.post2 packs layout v1\n"
        "  native      available    available, priority 0; serves the calls that flashinfer cannot\n"
        "  aiter       unavailable  needs the operation pack_sm90_w4, found sample\n"
        "\n"
        "who serves what\n"
        "  flashinfer  all calls but the layout v2, the format fp4_fp8, unpacking\n"
        "  native      the layout v2, the format fp4_fp8, unpacking\n"
        "\n"
        "not tried\n"
        "  whether flashinfer and native can be built: `tokendraw doctor` builds what a program gets\n"
        "\n"
        "settings\n"
        "  none\n"
    )
    be_on(monkeypatch, LAPTOP, (installed[0], replace(installed[1], upstream_version="0.6.9")))
    assert "  flashinfer  unavailable  needs a cuda device, found cpu\n" in call(*explain).stdout
    be_on(monkeypatch, H100, (installed[0], replace(installed[1], upstream_version="0.6.9")))
    assert (
        "  flashinfer  unavailable  needs flashinfer-python >=0.6.10, found 0.6.9, which packs no layout\n"
    ) in call(*explain).stdout
