"""``tokendraw resolve``: name, explanation and refusal, complete."""

import json
from dataclasses import asdict, replace

import pytest

from command_line import BOOM, OFF, be_on, call
from fake_candidates import AITER, ALL, FLASHINFER, H100, LAPTOP, NATIVE
from tokendraw import Need
from tokendraw.plugin import ProcessCapabilities, Release
from tokendraw_engine_ops.operations import Sm90W4Capabilities

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
