"""``tokendraw doctor``: the complete checkup, what it builds and asks in new processes, the command for each fault."""

import json
import platform
import time
from dataclasses import replace
from pathlib import Path

import pytest

import tokendraw
from call_tables import pairs
from command_line import BOOM, FUTURE, OFF, be_on, call, screen
from fake_candidates import FLASHINFER, H100, LAPTOP, NATIVE
from fake_dists import EVERYTHING, place, plugin
from tokendraw.backends import machine as _host
from tokendraw.cli import doctor as _doctor
from tokendraw.plugin import Release, Upstream


@pytest.fixture
def on(monkeypatch, tmp_path):
    """``on(host, candidates)``: the examined machine, without a configuration file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(_doctor, "engines", list)
    monkeypatch.setattr(_doctor, "installed_commands", tuple)

    def set_up(host, candidates):
        be_on(monkeypatch, host, tuple(candidates))
        monkeypatch.setattr(_host, "detect_host", lambda device=None: host)

    return set_up


def in_json():
    result = call("doctor", "--no-build", "--json")
    found = json.loads(result.stdout)
    assert (result.stderr, result.exit_code) == ("", 0 if found["chosen"] else 1)
    return found


def test_everything_wrong_comes_with_the_command_that_mends_it(on, monkeypatch):
    on(H100, (NATIVE, replace(FLASHINFER, upstream_version=None), BOOM, FUTURE, OFF))
    monkeypatch.setattr(platform, "platform", lambda: "Linux-6.1-x86_64")
    monkeypatch.setattr(_doctor, "installed_version", {"torch": "2.13.0+cpu"}.get)
    monkeypatch.setenv("TOKENDRAW_DISABLE", "off")
    monkeypatch.setenv("TOKENDRAW_SAMPLR", "native")
    result = call("doctor", "--no-build")
    assert result.stdout == screen("everything wrong comes with the command that mends it")
    assert (result.stderr, result.exit_code) == ("", 0)


WORDS = {
    "H100": H100,
    "LAPTOP": LAPTOP,
    "NATIVE": NATIVE,
    "FLASHINFER": FLASHINFER,
    "BOOM": BOOM,
    "replace": replace,
}
WORDS["FUTURE_0"] = replace(FUTURE, info=replace(FUTURE.info, api_version=0))


@pytest.mark.parametrize(("call", "told"), pairs(Path(__file__).with_name("faults.txt")))
def test_each_fault_has_a_sentence_and_its_command(on, monkeypatch, call, told):
    def doctor(host, *candidates, **settings):
        """Return the chosen sampler, and each problem with its remedy."""
        on(host, candidates)
        for name, value in settings.items():
            monkeypatch.setenv(f"TOKENDRAW_{name}", value)
        found = in_json()
        findings = [text for finding in found["findings"] for text in (finding["problem"], finding["mend"])]
        return "\n".join([f"chosen: {found['chosen']}", *filter(None, findings)])

    assert eval(call, {**WORDS, "doctor": doctor}) == told


STORED = "weights that were packed and stored have to be packed again"


@pytest.mark.parametrize(
    ("installed", "effect"),
    [
        ("0.6.17+cu130", f"0.7.2.post1 packs layout v2 where 0.6.17+cu130 packs layout v1: {STORED}"),
        ("0.7.1", "nothing that is known; this version is untested"),
        ("nightly", "unknown"),
    ],
)
def test_an_upstream_says_what_the_newest_tested_version_would_change(on, installed, effect):
    table = [
        Release(since, f"packs layout v{i}", change=STORED) for i, since in enumerate(("0.6.10", "0.6.18"), 1)
    ]
    library = Upstream("flashinfer-python", ">=0.6.7,<0.8", ("0.7.2.post1",), releases=tuple(table))
    info = replace(FLASHINFER.info, upstream=library)
    on(H100, (NATIVE, replace(FLASHINFER, info=info, upstream_version=installed)))
    assert [upstream["would_change"] for upstream in in_json()["upstreams"]] == [effect]


def test_a_plugin_that_came_from_a_folder_is_not_upgraded_from_an_index(on, dists):
    on(LAPTOP, (NATIVE, replace(BOOM, reason="it is old")))
    (folder,) = dists.add("boom-tokendraw").glob("*.dist-info")
    (folder / "direct_url.json").write_text('{"url": "file:///home/ada/boom", "dir_info": {}}')
    problem = "'boom' is broken: it is old. It was installed from '/home/ada/boom': mend it there."
    assert in_json()["findings"] == [{"problem": problem, "mend": "export TOKENDRAW_DISABLE=boom"}]


LIBACME = plugin("acme", capabilities=EVERYTHING, build="raise OSError('libacme.so: cannot open')")
RAISED = f"tokendraw_build raised OSError: libacme.so: cannot open {place(LIBACME, 'raise OSError')}"


def test_a_plugin_that_does_not_build_is_found_with_the_one_that_takes_its_place(dists):
    dists.add_plugin("acme", LIBACME)
    result = call("doctor")
    samplers, findings = result.stdout.partition("\nsamplers\n")[2].partition("\nfindings\n")[::2]
    assert samplers == (
        "  name    state        priority  version  what it does, or why it cannot\n"
        f"  native  available    0         {tokendraw.__version__}    "
        "the reference in plain PyTorch: every device, every request\n"
        f"  acme    unavailable  50        1.0      {RAISED}\n"
        "\n"
        "operations\n" + samplers.partition("operations\n")[2]  # with times
    )
    rows = [line.split() for line in samplers.partition("operations\n")[2].splitlines()]
    assert [(row[0], row[1], " ".join(row[2:5])) for row in rows[1:]] == [
        (name, "native", "built and proven") for name in ("sample", "verify", "score", "process_logits")
    ]
    assert findings == (
        f"  1.  'acme' cannot be built for sample: {RAISED}. Mend that, or report it to its author.\n"
        "      export TOKENDRAW_DISABLE=acme\n"
        "\n"
        "A program gets native here.\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


@pytest.mark.slow
def test_a_plugin_that_hangs_is_ended_with_the_processes_that_it_started(dists, tmp_path, monkeypatch):
    beats = tmp_path / "beats"
    child = f"import time\nwhile True:\n open({str(beats)!r}, 'a').write('.'); time.sleep(.02)"
    hangs = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING, build=hangs))

    monkeypatch.setattr(_doctor, "BUILD_SECONDS", 15)  # with the import of torch
    trouble, outcomes = _doctor.build(("sample",))
    assert trouble is None
    assert {name: value for name, value in outcomes["sample"].items() if value} == {
        "error": "building 'acme' was not done after 15 s",
        "rejections": {"acme": "building it was not done after 15 s"},
        "culprit": "acme",
    }
    count = beats.stat().st_size
    assert count > 0
    time.sleep(0.2)
    assert beats.stat().st_size == count


FITS = """
from tokendraw.engines import EngineState

def state():
    print("a banner of the engine")
    return EngineState(
        engine="Acme", installed="1.2.0", tested=("1.1.0", "1.2.0"), applies=True, reason="would replace its sampler"
    )
"""


def test_what_an_adapter_says_is_shown_and_what_its_engine_prints_is_not(dists, monkeypatch):
    be_on(monkeypatch, LAPTOP, (NATIVE,))
    groups = "[tokendraw.engines]\nacme = fake_adapter:state\n"
    dists.add("acme-adapter", modules={"fake_adapter": FITS}, entry_points=groups)
    stdout = call("doctor", "--no-build").stdout
    assert (
        "\nengines\n"
        "  name  installed  tested        applies  what is replaced, or why nothing is\n"
        "  Acme  1.2.0      1.1.0, 1.2.0  yes      would replace its sampler\n\n"
    ) in stdout
    assert "banner" not in stdout
