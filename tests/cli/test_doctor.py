"""``tokendraw doctor``: the complete checkup, and the command that mends each fault."""

import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import importlib_metadata
import pytest

import tokendraw
from command_line import BOOM, FUTURE, OFF, be_on, call
from fake_candidates import FLASHINFER, H100, LAPTOP, NATIVE
from fake_dists import plugin
from tokendraw import Need, operations
from tokendraw.backends.machine import detect as _host
from tokendraw.backends.resolution.decide import assess
from tokendraw.cli.diagnosis import checkup as _checkup
from tokendraw.cli.diagnosis.building import Build
from tokendraw.cli.diagnosis.findings import Finding, findings
from tokendraw.cli.diagnosis.libraries import Library, libraries, upstreams
from tokendraw.cli.diagnosis.origins import Origin, origins
from tokendraw.plugin import Release, Upstream
from tokendraw.resolution import Candidate, Choice, State, decide

SAMPLE = operations.find_operation("sample")
AROUND = [
    Library("torch", "2.13.0+cpu", ">=2.6", "tokendraw-native"),
    Library("triton", None),
    Library("numpy", None, ">=1.26", "tokendraw[files]"),
]
TOP = (
    f"tokendraw      {tokendraw.__version__}\n"
    f"python         {platform.python_version()} ({platform.python_implementation()})\n"
    "platform       Linux-6.1-x86_64\n"
)
LIBRARIES = (
    "\n"
    "libraries\n"
    "  name    installed   needed\n"
    "  torch   2.13.0+cpu  >=2.6 by tokendraw-native\n"
    "  triton  no          not required\n"
    "  numpy   no          >=1.26 by tokendraw[files]\n"
)


ORIGINS = [Origin("tokendraw", "/site/tokendraw", True), Origin("native", "/site/tokendraw_native", True)]
PLACES = "\norigins\n  tokendraw  /site/tokendraw\n  native     /site/tokendraw_native\n"


@pytest.fixture
def on(monkeypatch, tmp_path):
    """``on(host, candidates)``: the examined machine, without a configuration file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(platform, "platform", lambda: "Linux-6.1-x86_64")
    monkeypatch.setattr(_checkup, "libraries", lambda candidates: AROUND)
    monkeypatch.setattr(_checkup, "origins", lambda candidates: ORIGINS)
    monkeypatch.setattr(_checkup, "engines", list)
    monkeypatch.setattr(_checkup, "installed_commands", tuple)
    monkeypatch.setattr(_checkup, "heavy_imports", lambda entry_point: ())

    def set_up(host, candidates):
        def build(names, *, verbose):
            choice = tokendraw.resolution.read_settings().choice()
            chosen = {
                name: decide(candidates, host, operations.find_operation(name).need(), choice, operation=name)
                for name in names
            }
            return None, {
                name: Build(chosen=resolution.chosen, warnings=resolution.untested)
                for name, resolution in chosen.items()
            }

        be_on(monkeypatch, host, candidates)
        monkeypatch.setattr(_host, "detect_host", lambda device=None: host)
        monkeypatch.setattr(_checkup, "build", build)

    return set_up


def refusing(message):
    def resolve():
        raise tokendraw.SamplerUnavailableError(message)

    return resolve


def test_a_sound_installation(on):
    on(LAPTOP, (NATIVE,))
    result = call("doctor")
    assert result.stdout == (
        TOP + "device         cpu\n"
        "configuration  no file\n" + LIBRARIES + "\n"
        "samplers\n"
        "  name    state      priority  version  what it does, or why it cannot\n"
        "  native  available  0         0.1.0\n" + PLACES + "\n"
        "findings\n"
        "  nothing is wrong\n"
        "\n"
        "A program gets native here.\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


def test_a_library_is_one_line_that_names_all_who_need_it(on, monkeypatch):
    on(LAPTOP, (NATIVE,))
    requirements = [
        Library("torch", "2.13.0", ">=2.6", "tokendraw-native"),
        Library("torch", "2.13.0", ">=2.7", "acme-tokendraw"),
        Library("torch", "2.13.0", ">=2.6", "tokendraw-flashinfer"),
        Library("triton", "3.6.0", "", "acme-tokendraw"),
    ]
    monkeypatch.setattr(_checkup, "libraries", lambda candidates: requirements)
    assert (
        "  torch   2.13.0     >=2.6 by tokendraw-native and tokendraw-flashinfer; >=2.7 by acme-tokendraw\n"
        "  triton  3.6.0      any version by acme-tokendraw\n"
    ) in call("doctor").stdout


def test_everything_wrong_comes_with_the_command_that_mends_it(on, monkeypatch):
    absent = replace(FLASHINFER, upstream_version=None)
    on(H100, (NATIVE, absent, BOOM, FUTURE, OFF))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "off")
    monkeypatch.setenv("TOKENDRAW_SAMPLR", "native")
    result = call("doctor")
    assert result.stdout == (
        TOP.replace("tokendraw      ", "tokendraw          ")
        .replace("python         ", "python             ")
        .replace("platform       ", "platform           ")
        + "device             cuda (H100), compute capability 9.0, 132 SMs\n"
        "configuration      no file\n"
        "TOKENDRAW_DISABLE  off\n"
        "TOKENDRAW_SAMPLR   native\n" + LIBRARIES + "\n"
        "upstreams\n"
        "  name               installed  needed        tested                     what would change\n"
        "  flashinfer-python  no         >=0.6.7,<0.8  0.6.11.post2, 0.7.2.post1  unknown\n"
        "\n"
        "samplers\n"
        "  name        state         priority  version  what it does, or why it cannot\n"
        "  native      available     0         0.1.0\n"
        "  flashinfer  unavailable   80        0.1.0    needs flashinfer-python >=0.6.7,<0.8, found it not "
        "installed; run `pip install 'flashinfer-python>=0.6.7,<0.8'`\n"
        "  future      incompatible  10        9.9      needs plugin API 99, found 1; upgrade tokendraw\n"
        "  boom        broken                  2.0      loading 'boom:plugin' raised ImportError: cannot "
        "import name 'kernels' [see the notes] from 'boom_kernels', which is a long story\n"
        "  off         disabled                1.0      switched off by TOKENDRAW_DISABLE\n" + PLACES + "\n"
        "findings\n"
        "  1.  'TOKENDRAW_SAMPLR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. "
        "Correct it, or unset it.\n"
        "  2.  'flashinfer' is unavailable: needs flashinfer-python >=0.6.7,<0.8, found it not installed.\n"
        "      pip install 'flashinfer-python>=0.6.7,<0.8'\n"
        "  3.  'future' is incompatible: needs plugin API 99, found 1; upgrade tokendraw.\n"
        "      pip install --upgrade ./core (in tokendraw's checkout)\n"
        "  4.  'boom' is broken: loading 'boom:plugin' raised ImportError: cannot import name 'kernels' [see "
        "the notes] from 'boom_kernels', which is a long story.\n"
        "      pip install --upgrade boom-tokendraw (or switch it off: export TOKENDRAW_DISABLE=off,boom)\n"
        "\n"
        "A program gets native here.\n"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


STORED = "weights that were packed and stored have to be packed again"
TABLE = (
    Release("0", "packs no layout", "pack_sm90_w4", refused=True),
    Release("0.6.10", "packs layout v1", "pack_sm90_w4", change=STORED),
    Release("0.6.18", "packs layout v2", "pack_sm90_w4", change=STORED),
)


def with_library(installed, **fields):
    library = Upstream(
        "flashinfer-python", ">=0.6.7,<0.8", **({"tested": ("0.7.2.post1",), "releases": TABLE} | fields)
    )
    return replace(FLASHINFER, info=replace(FLASHINFER.info, upstream=library), upstream_version=installed)


def would_change(installed, **fields):
    (state,) = upstreams([with_library(installed, **fields)])
    return state["would_change"]


def test_an_upstream_is_named_with_its_versions(on):
    on(H100, (NATIVE, FLASHINFER))
    assert checkup_in_json(exit_code=0)["upstreams"] == [
        {
            "name": "flashinfer-python",
            "plugin": "flashinfer",
            "installed": "0.7.2.post1",
            "needed": ">=0.6.7,<0.8",
            "tested": ["0.6.11.post2", "0.7.2.post1"],
            "would_change": "nothing: this version is tested",
        }
    ]


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ("0.6.17", "packs layout v1"),
        ("0.6.17+cu130", "packs layout v1"),
        ("0.6.9", "packs no layout"),
    ],
)
def test_what_the_newest_tested_version_does_in_another_way_would_change(installed, words):
    effect = f"packs layout v2 where {installed} {words}: {STORED}"
    assert would_change(installed) == f"0.7.2.post1 {effect}"
    assert would_change(installed, tested=()) == f"0.6.18 {effect}"  # the newest that is known


@pytest.mark.parametrize(
    ("installed", "fields", "effect"),
    [
        ("0.7.2.post1", {}, "nothing: this version is tested"),
        ("0.7.2.post1+cu130", {}, "nothing: this version is tested"),
        ("0.7.1", {}, "nothing that is known; this version is untested"),
        ("0.6.18", {"tested": ()}, "nothing that is known; this version is untested"),
        ("0.7.1", {"tested": (), "releases": ()}, "unknown"),
        ("0.7.1", {"tested": (">=0.7,<0.8",), "releases": ()}, "nothing: this version is tested"),
        (None, {}, "unknown"),
        ("nightly", {}, "unknown"),
    ],
)
def test_a_version_that_does_the_same_would_change_nothing(installed, fields, effect):
    assert would_change(installed, **fields) == effect


def test_what_the_files_of_a_version_do_is_what_another_version_would_change(on):
    on(H100, (NATIVE, with_library("0.6.17", found={"pack_sm90_w4": "packs layout v2"})))
    checkup = checkup_in_json(exit_code=0)
    assert checkup["upstreams"][0]["would_change"] == "nothing that is known; this version is untested"
    assert checkup["findings"][1:] == [
        {
            "problem": "'flashinfer' knows that flashinfer-python 0.6.17 packs layout v1, and finds in its files that "
            "it packs layout v2. It goes by the files. Report it to tokendraw's maintainers.",
            "mend": None,
        }
    ]


def test_with_nothing_installed_it_exits_with_1(on, monkeypatch):
    on(LAPTOP, ())
    monkeypatch.setattr(tokendraw, "resolve", refusing("No sampler [at all] can serve. Install one."))
    result = call("doctor")
    assert "\nsamplers\n  none\n" in result.stdout
    assert result.stdout.endswith(
        "\nfindings\n  1.  No sampler [at all] can serve. Install one.\n\nA program gets no sampler here.\n"
    )
    assert result.exit_code == 1


def checkup_in_json(*, exit_code):
    result = call("doctor", "--json")
    assert (result.stderr, result.exit_code) == ("", exit_code)
    return json.loads(result.stdout)


def test_json_is_complete(on, monkeypatch):
    on(LAPTOP, (NATIVE,))
    monkeypatch.setenv("TOKENDRAW_PRIORITY", "native")
    candidates = json.loads(call("list", "--json").stdout)["candidates"]
    checkup = checkup_in_json(exit_code=0)
    assert checkup == {
        "schema_version": 1,
        "error": None,
        "tokendraw": tokendraw.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": "Linux-6.1-x86_64",
        "libraries": [
            {
                "name": "torch",
                "installed": "2.13.0+cpu",
                "needed": ">=2.6",
                "needed_by": "tokendraw-native",
                "fits": True,
            },
            {"name": "triton", "installed": None, "needed": "", "needed_by": "", "fits": True},
            {
                "name": "numpy",
                "installed": None,
                "needed": ">=1.26",
                "needed_by": "tokendraw[files]",
                "fits": True,
            },
        ],
        "upstreams": [],
        "engines": [],
        "commands": [],
        "host": {
            "device_type": "cpu",
            "name": "",
            "compute_capability": None,
            "rocm_arch": None,
            "sm_count": None,
            "cuda_version": None,
        },
        "settings": {"variables": {"TOKENDRAW_PRIORITY": "native"}, "config": None},
        "candidates": candidates,
        "origins": [
            {"name": "tokendraw", "path": "/site/tokendraw", "beside_core": True},
            {"name": "native", "path": "/site/tokendraw_native", "beside_core": True},
        ],
        "chosen": "native",
        "operations": {"sample": "native"},
        "builds": {
            "sample": {
                "chosen": "native",
                "companion": None,
                "partial_companion": None,
                "seconds": 0.0,
                "error": None,
                "rejections": {},
            }
        },
        "heavy_imports": {},
        "findings": [],
    }


def test_the_configuration_file_in_force_is_named(on, monkeypatch, tmp_path):
    on(LAPTOP, (NATIVE,))
    (tmp_path / "mine.toml").write_text('priority = ["native"]\n')
    monkeypatch.setenv("TOKENDRAW_CONFIG", str(tmp_path / "mine.toml"))
    assert checkup_in_json(exit_code=0)["settings"]["config"] == str(tmp_path / "mine.toml")


def test_a_malformed_setting_is_a_finding(on, monkeypatch):
    on(LAPTOP, (NATIVE,))
    monkeypatch.setenv("TOKENDRAW_STRICT", "maybe")
    checkup = checkup_in_json(exit_code=1)
    assert checkup["findings"] == [
        {
            "problem": "'TOKENDRAW_STRICT' needs 0, 1, false or true, found 'maybe'. Set one of these, or unset it.",
            "mend": None,
        }
    ]
    assert checkup["chosen"] is None


def test_strict_mode_leaves_no_sampler_where_there_is_a_warning(on, monkeypatch):
    on(LAPTOP, (NATIVE, BOOM))
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    checkup = checkup_in_json(exit_code=1)
    assert [finding["problem"].split(": ")[0] for finding in checkup["findings"]] == [
        "'boom' was passed over",
        "'boom' is broken",
    ]


def test_without_native_what_nothing_serves_is_a_finding(on):
    on(H100, (FLASHINFER,))
    problem = checkup_in_json(exit_code=0)["findings"][-1]["problem"]
    assert problem.startswith("No installed plugin serves ")
    for missing in ("greedy rows", "seeded rows", "the operation 'score'"):
        assert missing in problem
    assert problem.endswith("; run `pip install ./plugins/native` in tokendraw's checkout.")


def test_an_untested_upstream_version_is_a_finding(on):
    on(H100, (NATIVE, replace(FLASHINFER, upstream_version="0.7.9")))
    (warning,) = tokendraw.resolve().warnings
    assert "0.7.9" in warning
    assert checkup_in_json(exit_code=0)["findings"] == [{"problem": warning, "mend": None}]


OUTSIDE = replace(
    FLASHINFER,
    state=State.UNAVAILABLE,
    reason="needs flashinfer-python >=0.6.7,<0.8, found 0.5",
    upstream_version="0.5",
)
RIVALS = [replace(BOOM, distribution=f"{name}-tokendraw") for name in "abc"]


class TestMending:
    @pytest.mark.parametrize(
        ("candidates", "mends"),
        [
            ([replace(OUTSIDE, reason="needs a cuda device, found cpu", upstream_version="0.7.2")], []),
            ([OUTSIDE], ["pip install 'flashinfer-python>=0.6.7,<0.8'"]),
            (
                [replace(FUTURE, info=replace(FUTURE.info, api_version=0))],
                ["pip install --upgrade future-tokendraw"],
            ),
            ([replace(BOOM, name="aiter")], ["pip uninstall boom-tokendraw"]),
            (RIVALS[:2], ["pip uninstall b-tokendraw (or pip uninstall a-tokendraw)"]),
            (
                RIVALS,
                [
                    "pip uninstall b-tokendraw c-tokendraw (or pip uninstall a-tokendraw c-tokendraw, or pip uninstall "
                    "a-tokendraw b-tokendraw)"
                ],
            ),
        ],
        ids=[
            "another machine",
            "a library out of range",
            "an older API",
            "a squatter",
            "two rivals",
            "three",
        ],
    )
    def test_each_state_has_its_command(self, candidates, mends):
        upstream = Library("flashinfer-python", "0.5", ">=0.6.7,<0.8", "tokendraw-flashinfer")
        told = findings([], [upstream] if candidates == [OUTSIDE] else [], candidates)  # told of once
        assert [finding.mend for finding in told] == mends

    @pytest.mark.parametrize(("version", "found"), [("2.4", "version 2.4"), (None, "none installed")])
    def test_a_library_out_of_range_is_installed_anew(self, version, found):
        assert findings([], [Library("torch", version, ">=2.6", "tokendraw-native")], []) == [
            Finding(f"'tokendraw-native' needs torch >=2.6, found {found}.", "pip install 'torch>=2.6'")
        ]

    @pytest.mark.parametrize("versions", [">=0.6.7,<0.8", ""])
    def test_an_upstream_that_its_table_refuses_is_installed_in_another_version(self, versions):
        table = (
            Release("0", "draws", "sample"),
            Release("0.6.12", "draws wrongly", "sample", refused=True),
            Release("0.6.12.post1", "draws", "sample"),
        )
        info = replace(
            FLASHINFER.info, upstream=replace(FLASHINFER.info.upstream, versions=versions, releases=table)
        )
        bad = assess(replace(FLASHINFER, info=info, upstream_version="0.6.12"), SAMPLE, H100, Need())
        assert findings([], [], [bad]) == [
            Finding(
                "'flashinfer' is unavailable: needs flashinfer-python <0.6.12 or >=0.6.12.post1, "
                "found 0.6.12, which draws wrongly.",
                f"pip install 'flashinfer-python{versions}{versions and ','}>=0.6.12.post1'",
            )
        ]

    @pytest.mark.parametrize(
        ("requires", "module", "advice", "command"),
        [
            ("acme-kernels-cu12>=2", "acme_kernels", "", "pip install 'acme-kernels-cu12>=2' (or {})"),
            ("acme.kernels; extra == 'gpu'", "acme_kernels.fast", "", "pip install 'acme.kernels' (or {})"),
            (
                "packaging",
                "acme_kernels",
                " Install what has the module 'acme_kernels', which acme-tokendraw does not require.",
                "export TOKENDRAW_DISABLE=beta,acme",
            ),
            (
                "acme-kernels",
                "fake_acme.kernels",
                " The module is its own: install acme-tokendraw again from where it came from.",
                "export TOKENDRAW_DISABLE=beta,acme",
            ),
        ],
        ids=["a requirement", "a requirement of an extra", "no requirement", "a part of the plugin"],
    )
    def test_a_module_that_is_missing_is_installed_not_the_plugin_upgraded(
        self, dists, requires, module, advice, command
    ):
        reason = f"raised ModuleNotFoundError: No module named {module!r}"
        choice = Choice(disabled=("beta",))
        acme = replace(BOOM, name="acme", distribution="acme-tokendraw", entry_point="fake_acme:plugin")
        broken = replace(acme, reason=f"loading 'fake_acme:plugin' {reason}")
        usable = replace(acme, state=State.AVAILABLE, reason=None, info=replace(NATIVE.info, name="acme"))
        failed = Build(chosen="native", rejections={"acme": f"tokendraw_build {reason}"})
        dists.add(
            "acme-tokendraw", metadata=f"Name: acme-tokendraw\nVersion: 1.0\nRequires-Dist: {requires}\n"
        )
        of_loading = findings([], [], [broken], choice=choice)
        of_building = findings([], [], [usable], builds={"sample": failed, "verify": failed}, choice=choice)
        switch_off = "or switch it off: export TOKENDRAW_DISABLE=beta,acme"
        assert of_loading == [
            Finding(
                f"'acme' is broken: {broken.reason}.{advice}", command.format(switch_off.removeprefix("or "))
            )
        ]
        assert of_building == [
            Finding(
                f"'acme' cannot be built for sample and verify: tokendraw_build {reason}.{advice}",
                command.removesuffix(" (or {})"),
            )
        ]

    @pytest.mark.parametrize("state", [State.BROKEN, State.INCOMPATIBLE])
    def test_a_plugin_that_came_from_a_folder_is_not_upgraded_from_an_index(self, dists, state):
        info = replace(FUTURE.info, api_version=0) if state is State.INCOMPATIBLE else None
        boom = replace(BOOM, state=state, reason="it is old", info=info)
        (folder,) = dists.add("boom-tokendraw").glob("*.dist-info")
        (folder / "direct_url.json").write_text('{"url": "file:///home/ada/boom", "dir_info": {}}')
        assert findings([], [], [boom]) == [
            Finding(
                f"'boom' is {state}: it is old. It was installed from '/home/ada/boom': mend it there.",
                "export TOKENDRAW_DISABLE=boom",
            )
        ]


class TestLibraries:
    def acme(self):
        upstream = Upstream("acme-kernels", ">=2,<3")
        return Candidate(
            name="acme",
            state=State.UNAVAILABLE,
            distribution="acme-tokendraw",
            info=replace(NATIVE.info, name="acme", upstream=upstream),
        )

    def test_upstreams_are_among_them(self):
        assert libraries([self.acme()])[-1] == Library("acme-kernels", None, ">=2,<3", "acme-tokendraw")

    def test_torch_comes_first_with_who_needs_it(self):
        info = replace(NATIVE.info, upstream=Upstream("torch", ">=2.6"))
        native = replace(NATIVE, info=info, upstream_version=importlib_metadata.version("torch"))
        first, second, *_ = libraries([native])
        assert (first.name, first.needed, first.needed_by) == ("torch", ">=2.6", "tokendraw-native")
        assert first.installed == importlib_metadata.version("torch")  # as the metadata say it
        assert second.name == "triton"  # named once, although it is an upstream and a requirement

    def test_what_extras_ask_for_is_one_line_that_names_them(self):
        requirements = libraries([])
        by_name = {library.name: library for library in requirements}
        assert len(by_name) == len(requirements)
        assert by_name["numpy"].needed_by == "tokendraw[files]"
        assert by_name["safetensors"].needed_by == "tokendraw[files]"
        assert by_name["torch"].needed_by == ""

    @pytest.mark.parametrize(
        ("installed", "needed", "needed_by", "fits"),
        [
            ("2.13.0+cpu", ">=2.6", "tokendraw-native", True),
            ("2.14.0.dev1", ">=2.6", "tokendraw-native", True),
            ("2.4", ">=2.6", "tokendraw-native", False),
            ("nightly", ">=2.6", "tokendraw-native", False),
            (None, ">=2.6", "tokendraw-native", False),
            (None, ">=2.6", "tokendraw[files]", True),
            (None, "", "", True),
            ("1", "", "", True),
            ("9" * 5000, ">=2.6", "tokendraw-native", False),
        ],
    )
    def test_versions_fit_by_pep_440(self, installed, needed, needed_by, fits):
        assert Library("torch", installed, needed, needed_by).fits is fits

    @pytest.mark.parametrize(
        "line",
        [
            "Requires-Dist: torch; python_version > 'no version'",
            "Requires-Dist: torch; no_such_variable == '1'",
            "Requires-Dist: torch >=",
            "Requires-Dist: torch; extra == '\x1b[31m'\nProvides-Extra: \x1b[31m",
        ],
    )
    def test_requirements_that_nobody_understands_are_none(self, dists, line):
        dists.add("acme-tokendraw", metadata=f"Name: acme-tokendraw\nVersion: 1.0\n{line}\n")
        acme = Candidate(name="acme", state=State.BROKEN, distribution="acme-tokendraw")
        requirements = libraries([acme])
        assert all(library.needed_by.isprintable() for library in requirements)
        assert not [library for library in requirements if library.needed_by == "acme-tokendraw"]


class TestOrigins:
    """Any distribution can call itself tokendraw-native: doctor shows the folder of each plugin."""

    def test_a_plugin_in_the_checkout_of_the_core_is_beside_it(self):
        core, native = origins(c for c in tokendraw.discover() if c.name == "native")
        assert core == Origin("tokendraw", str(Path(tokendraw.__file__).parent), True)
        assert (native.name, native.beside_core) == ("native", True)
        assert Path(native.path, "sampler.py").is_file()

    def test_a_plugin_in_the_same_site_packages_is_beside_the_core(self, tmp_path, monkeypatch):
        for package in ("tokendraw", "tokendraw_native"):
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text("")
        monkeypatch.setattr(tokendraw, "__file__", str(tmp_path / "tokendraw" / "__init__.py"))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "tokendraw_native", raising=False)
        assert origins([NATIVE])[1] == Origin("native", str(tmp_path / "tokendraw_native"), True)

    def test_one_that_calls_itself_native_from_elsewhere_is_shown_and_told_of(self, dists):
        module = dists.add_plugin("native", plugin("native", priority=99), distribution="tokendraw-native")
        path = dists.folders[0] / f"{module}.py"
        result = call("doctor", "--no-build", "--json")
        checkup = json.loads(result.stdout)
        assert {"name": "native", "path": str(path), "beside_core": False} in checkup["origins"]
        problem = (
            f"'native' goes by the name of tokendraw's own plugin and comes from '{path}', while the core is "
            f"'{Path(tokendraw.__file__).parent}'. Uninstall it or take it off Python's path, unless you put it there."
        )
        assert {"problem": problem, "mend": None} in checkup["findings"]
        assert f"  native     {path}\n" in call("doctor", "--no-build").stdout

    def test_plugins_of_others_are_not_among_them(self, dists):
        dists.add_plugin("acme", plugin("acme"))
        assert [o.name for o in origins(c for c in tokendraw.discover() if c.name == "acme")] == ["tokendraw"]

    def test_a_plugin_whose_module_is_gone_comes_from_nowhere(self):
        gone = replace(NATIVE, entry_point="no_such_module:plugin")
        assert origins([gone])[1] == Origin("native", "", False)
        assert findings([], [], [], origins([gone])) == []
