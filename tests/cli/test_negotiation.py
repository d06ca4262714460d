"""``tokendraw list``, ``show`` and ``resolve``: the complete output, explanations and refusals."""

import json
from dataclasses import asdict, replace

import pytest

from command_line import BOOM, FUTURE, OFF, be_on, call, screen
from fake_candidates import ALL, FLASHINFER, H100, LAPTOP, NATIVE
from tokendraw import Need
from tokendraw.plugin import HostCapabilities, ProcessCapabilities, Release, VerifyCapabilities

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
    assert result.stdout == (screen("list shows every sampler with the whole reason"))
    assert (result.stderr, result.exit_code) == ("", 0)


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
        screen("list shows the operations of every plugin whichever is asked for")
    )


def test_show_tells_everything_about_a_sampler(monkeypatch):
    info = replace(
        FLASHINFER.info,
        summary="FlashInfer's kernels",
        verified="H100, torch 2.11",
        kernels="prebuilt, in flashinfer-python 0.7.2.post1",
    )
    be_on(monkeypatch, LAPTOP, (NATIVE, replace(FLASHINFER, info=info)))
    result = call("show", "flashinfer")
    assert result.stdout == (screen("show tells everything about a sampler"))
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


def test_show_of_a_sampler_that_never_described_itself(monkeypatch):
    be_on(monkeypatch, LAPTOP, (BOOM,))
    result = call("show", "boom")
    assert result.stdout == (screen("show of a sampler that never described itself"))
    assert result.exit_code == 0


def test_show_does_not_trust_the_description_of_another_plugin_api(monkeypatch):
    be_on(monkeypatch, LAPTOP, (replace(FUTURE, info=replace(FUTURE.info, operations="of another kind")),))
    assert call("show", "future").stdout == (
        screen("show does not trust the description of another plugin api")
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


@pytest.mark.parametrize("name", ["top-n-sigma", "top_n_sigma"])
def test_show_finds_a_filter_by_its_name_with_hyphens_too(name):
    assert call("show", name).stdout.startswith("top_n_sigma\n  summary ")


STRICT = "TOKENDRAW_STRICT=1 makes this warning an error."
PASSED_OVER = (
    f"'boom' was passed over: {BOOM.reason}. Using 'flashinfer'. "
    "Set TOKENDRAW_DISABLE=boom to silence this.\n"
)


def test_explain_shows_every_decision_who_serves_what_and_the_settings(monkeypatch):
    be_on(monkeypatch, H100, (*ALL, BOOM, OFF))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "off")
    result = call("resolve", "--explain")
    assert result.stdout == (screen("explain shows every decision who serves what and the settings"))
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
    assert call("doctor", "--no-build").exit_code == 1


def test_a_choice_that_cannot_be_honoured_is_an_error_behind_the_decisions(monkeypatch):
    be_on(monkeypatch, LAPTOP)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "flashinfer")
    result = call("resolve", "--explain")
    assert result.stderr == (
        "'flashinfer', asked for by TOKENDRAW_SAMPLER, cannot serve the operation 'sample' on cpu: needs a cuda "
        "device, found cpu. Available here: native. Unset TOKENDRAW_SAMPLER to let tokendraw choose.\n"
    )
    assert (result.stdout, result.exit_code) == (
        screen("a choice that cannot be honoured is an error behind the decisions"),
        1,
    )


@pytest.mark.parametrize("command", ["list", "show native"])
def test_with_nothing_installed_it_says_what_to_install(monkeypatch, command):
    be_on(monkeypatch, LAPTOP, ())
    result = call(*command.split())
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr.endswith("; run `pip install ./plugins/native` in tokendraw's checkout.\n")


def test_strict_mode_makes_a_fallback_an_error(monkeypatch):
    be_on(monkeypatch, H100, (*ALL, BOOM))
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    result = call("resolve")
    error = PASSED_OVER.replace(" Using 'flashinfer'.", "").replace("\n", f" {STRICT}\n")
    assert (result.stdout, result.stderr, result.exit_code) == ("", error, 1)


def test_every_need_can_be_given_by_its_name():
    given = {
        "logprobs_mode": "processed_logprobs",
        "filter_orders": ["joint", "top_k_first"],
        "gumbel_dtype": "fp64",
        "dtype": "bfloat16",
        "vocab_size": 99,
        "seeding": "counter",
        "tie_rule": "either",
        "max_logprobs": 8,
        "logprob_ranks": False,
        **dict.fromkeys(("valid_flag", "graph_safe", "sync_free", "threshold", "batch_invariant"), True),
    }
    assert given.keys() == asdict(Need()).keys()
    texts = {name: ",".join(v) if isinstance(v, list) else v for name, v in given.items()}
    words = [word for name, text in texts.items() for word in ("--need", f"{name}={text}")]
    assert json.loads(call("resolve", "--json", *words).stdout)["need"] == given
    options = ("--logprobs-mode", "processed_logprobs", "--gumbel-dtype", "fp64", "--need", "vocab_size=none")
    found = json.loads(call("resolve", "--json", *options).stdout)["need"]
    changed = {"logprobs_mode": "processed_logprobs", "gumbel_dtype": "fp64"}
    assert found == json.loads(json.dumps(asdict(Need()))) | changed
