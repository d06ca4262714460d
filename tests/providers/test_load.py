"""Loading: builds and wrappers by arguments and settings, refusals, and warnings."""

import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

import tokendraw
from call_tables import pairs
from fake_dists import (
    EVERYTHING,
    SERVED_BY_NATIVE,
    plugin,
    serving_both,
)
from tokendraw import (
    Drafts,
    Need,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    SettingsError,
    SettingsWarning,
    UntestedUpstreamWarning,
    load,
    load_sampler,
)
from tokendraw.engines import choose_once

LOGITS = torch.zeros(3, 50)
SEEDED = SamplingMetadata.from_params([SamplingParams(seed=i) for i in range(3)], positions=[0, 1, 2])
GREEDY = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * 3)
DRAFTS = Drafts.from_lists([[1, 2]])
NO_GREEDY = EVERYTHING.replace("greedy=True", "greedy=False")


def draw(sampler):
    logits = torch.tensor([[0.0, 9.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    return sampler.sample(logits, GREEDY).token_ids.tolist()


class TestWhatIsLoaded:
    def test_native_is_loaded_on_the_cpu_and_draws_as_the_providers_of_its_operations_do(self, dists):
        sampler = load_sampler(device="cpu")
        assert (sampler.name, sampler.device) == ("native", torch.device("cpu"))
        assert (sampler.resolution.chosen, sampler.resolution.companion) == ("native", None)
        assert draw(sampler) == [1, 0, 2]
        one = load("sample", "native", device="cpu")
        assert (one.name, one.resolution.operation) == ("native", "sample")
        assert torch.equal(one.sample(LOGITS, SEEDED).token_ids, sampler.sample(LOGITS, SEEDED).token_ids)
        other = load("verify", "native", device="cpu", need=Need(vocab_size=50))
        assert (other.name, other.resolution.need) == ("native", Need(vocab_size=50))
        found, expected = (each.verify(LOGITS, DRAFTS, SEEDED) for each in (other, sampler))
        assert torch.equal(found.token_ids, expected.token_ids)

    def test_the_best_plugin_is_built_once_with_the_need_of_the_caller(self, dists):
        source = plugin("acme", capabilities=EVERYTHING, build="BUILT[-1] = need; return ArgmaxSampler()")
        module = dists.add_plugin("acme", source)
        assert draw(load_sampler(device=torch.device("cpu"), need=Need(valid_flag=True))) == [1, 0, 2]
        load_sampler(device="cpu", logprobs_mode="processed_logprobs", need=Need(valid_flag=True))
        load_sampler(device="cpu", need=Need(logprobs_mode="processed_logprobs"))
        assert [
            Need(valid_flag=True),
            Need(valid_flag=True, logprobs_mode="processed_logprobs"),
            Need(logprobs_mode="processed_logprobs"),
        ] == sys.modules[module].BUILT

    def test_the_companion_is_built_too_and_serves_what_the_chosen_one_cannot(self, dists):
        module = dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
        sampler = load_sampler(device="cpu")
        assert (sampler.name, sampler.resolution.companion) == ("acme", "native")

        def no_rows_please(self, logits, metadata):
            raise RuntimeError("a row came to acme")

        sys.modules[module].ArgmaxSampler.sample = no_rows_please
        assert draw(sampler) == [1, 0, 2]
        with pytest.warns(SamplerFallbackWarning, match="a row came to acme"):
            sampler.sample(torch.zeros(1, 3), SamplingMetadata.from_params([SamplingParams()]))

    @pytest.mark.parametrize(
        ("operations", "act", "built"),
        [
            (("sample",), lambda sampler: sampler.sample(LOGITS, SEEDED), ["sample"]),
            (("sample",), lambda sampler: sampler.verify(LOGITS, DRAFTS, SEEDED), ["sample", "verify"]),
            (
                ("sample",),
                lambda sampler: sampler.warmup(50, dtypes=[torch.float32], max_drafts=2),
                ["sample", "verify"],
            ),
            (("sample", "verify"), lambda sampler: sampler.name, ["sample", "verify"]),
        ],
        ids=["sample", "verify", "a warmup with drafts", "at load"],
    )
    def test_an_operation_is_built_at_load_or_first_use_after_one_discovery(
        self, dists, operations, act, built
    ):
        module = dists.add_plugin("acme", serving_both())
        sampler = load_sampler(device="cpu", operations=operations)
        acme = sys.modules[module]
        assert ([1], list(operations)) == (acme.DESCRIBED, acme.PROBED)
        for _ in range(2):
            act(sampler)
        assert (built, built) == (acme.BUILT, acme.PROBED)
        assert len(acme.DESCRIBED) == 1 + (len(built) > len(operations))

    def test_the_argument_goes_before_the_variable_and_that_before_the_file(
        self, dists, tmp_path, monkeypatch
    ):
        for name in ("acme", "beta"):
            dists.add_plugin(name, plugin(name, priority=-5, capabilities=EVERYTHING))
        path = tmp_path / "config.toml"
        path.write_text('sampler = "acme"', encoding="utf-8")
        assert load_sampler(device="cpu").name == "native"
        monkeypatch.setenv("TOKENDRAW_CONFIG", str(path))
        assert load_sampler(device="cpu").resolution.choice.source == str(path)
        monkeypatch.setenv("TOKENDRAW_SAMPLER", "beta")
        assert load_sampler(device="cpu").name == "beta"
        assert load_sampler("native", device="cpu").name == "native"
        monkeypatch.setenv("TOKENDRAW_STRICT", "yes")
        with pytest.raises(SettingsError):
            load_sampler("native", device="cpu")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
    def test_without_an_accelerator_the_cpu_is_the_default_and_a_gpu_is_refused(self, dists):
        module = dists.add_plugin("acme", plugin("acme"))
        with pytest.raises(SamplerUnavailableError, match="'cuda' needs a CUDA or ROCm device"):
            load_sampler(device="cuda")
        assert module not in sys.modules
        assert load_sampler().device == torch.device("cpu")

    @pytest.mark.gpu
    def test_the_accelerator_is_the_default_device_and_its_random_state_is_left_alone(self):
        torch.cuda.manual_seed(7)
        before = torch.cuda.get_rng_state()
        assert load_sampler("native").device == torch.device("cuda", torch.cuda.current_device())
        assert torch.equal(torch.cuda.get_rng_state(), before)


def warmup(**arguments):
    sound = {"vocab_size": 100, "dtypes": [torch.float32]}
    load_sampler("native", device="cpu").warmup(**sound | arguments)


WORDS = {
    "load_sampler": partial(load_sampler, device="cpu"),
    "load": partial(load, device="cpu"),
    "warmup": warmup,
    "torch": torch,
}


@pytest.mark.parametrize(("call", "raised"), pairs(Path(__file__).with_name("refusals.txt")))
def test_what_cannot_be_had_is_refused(dists, call, raised):
    dists.add_plugin("acme", plugin("acme", priority=-1, capabilities=EVERYTHING))
    with pytest.raises((ImportError, TypeError, tokendraw.TokendrawError)) as error:
        eval(call, WORDS)
    assert f"{error.type.__name__}: {error.value}" == raised


class TestChoicesOfAnotherRank:
    def test_they_are_loaded_with_their_companions_whatever_would_be_chosen_here(self, dists, monkeypatch):
        for name in ("acme", "beta"):
            capabilities = EVERYTHING.replace("greedy=True", f"greedy={name == 'beta'}")
            dists.add_plugin(name, plugin(name, capabilities=capabilities))
        monkeypatch.setenv("TOKENDRAW_DISABLE", "beta")
        choices = load_sampler(device="cpu").choices
        assert choices == {"sample": ("acme", "native")}
        monkeypatch.setenv("TOKENDRAW_DISABLE", "")
        monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
        sampler = load_sampler(choices, device="cpu")
        assert (sampler.name, sampler.resolution.companion, sampler.choices) == ("acme", "native", choices)
        assert load("sample", choices, device="cpu").choices == choices
        alone = load_sampler(choices, device="cpu", companion=False)
        assert (alone.name, alone.resolution.companion) == ("acme", None)

    def test_a_companion_that_ranks_before_the_chosen_one_is_among_them(self, dists, monkeypatch):
        unseeded = EVERYTHING.replace("seeding='counter'", "seeding='none'")
        dists.add_plugin("acme", plugin("acme", priority=90, capabilities=unseeded))
        few = unseeded.replace("greedy=True", "greedy=False")
        dists.add_plugin("beta", plugin("beta", priority=80, capabilities=few))
        choices = load_sampler("beta", device="cpu").choices
        assert choices == {"sample": ("beta", "acme", "native")}
        monkeypatch.setenv("TOKENDRAW_PRIORITY", "native")
        resolution = load_sampler(choices, device="cpu").resolution
        assert (resolution.partial_companion, resolution.companion) == ("acme", "native")

    @pytest.mark.parametrize("missing", ["acme", "native"])
    def test_those_that_cannot_be_loaded_are_refused(self, dists, monkeypatch, missing):
        dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
        choices = load_sampler(device="cpu").choices
        monkeypatch.setenv("TOKENDRAW_DISABLE", missing)
        with pytest.raises(SamplerUnavailableError) as error:
            load_sampler(choices, device="cpu")
        assert str(error.value).startswith(
            f"'{missing}', asked for by the argument sampler=, cannot serve the operation 'sample' on cpu: switched "
            "off by TOKENDRAW_DISABLE. "
        )
        assert str(error.value).endswith("Choose another one, on every rank.")

    def test_they_hold_the_operations_that_were_negotiated(self):
        sampler = load_sampler(device="cpu", operations=("sample", "score"))
        assert set(sampler.choices) == {"sample", "score"}
        load_sampler(sampler.choices, device="cpu").prepare("score")

    def test_a_process_alone_chooses_for_itself(self):
        assert choose_once(lambda: 7, None) == 7


class TestWithoutCompanion:
    def test_nobody_serves_what_the_chosen_one_cannot(self, dists, monkeypatch):
        dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
        assert load_sampler(device="cpu").sample(LOGITS, GREEDY).valid.all()
        alone = load_sampler(device="cpu", companion=False)
        assert (alone.name, alone.resolution.companion) == ("acme", None)
        assert alone.resolution.beyond == ("greedy rows",)
        monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
        off = "Make 'native' available, which is installed (switched off by TOKENDRAW_DISABLE)"
        for sampler, mend in (
            (alone, "Leave out companion=False, so that 'native' serves as one"),
            (load_sampler(device="cpu"), off),
            (load_sampler(device="cpu", companion=False), off),
        ):
            with pytest.raises(SamplerUnavailableError) as refused:
                sampler.sample(LOGITS, GREEDY)
            assert str(refused.value) == (
                "'acme' cannot serve greedy rows, which this batch may hold, and has no companion. "
                f"{mend}, or, if the batch holds none, say so in SamplingMetadata.facts."
            )


def load_and_catch():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_sampler(device="cpu")
    return caught


USING = "Using 'native'. "
NO_LIBRARY = "raise OSError('no libacme')"
UPSTREAM = "tokendraw.plugin.Upstream('acme-kernels', '>=2,<3', ('2.1',))"
WARNINGS = [
    (
        NO_LIBRARY,
        {},
        SamplerFallbackWarning,
        "'acme' was passed over: loading 'fake_acme:plugin' raised OSError: no libacme. "
        "Using 'native'. Set TOKENDRAW_DISABLE=acme to silence this.",
    ),
    (
        plugin("acme", capabilities=EVERYTHING, upstream=UPSTREAM),
        {},
        UntestedUpstreamWarning,
        "'acme' needs acme-kernels >=2,<3 and was tested with 2.1, found 2.5. "
        "Set TOKENDRAW_DISABLE=acme to do without it.",
    ),
    (
        plugin("acme", capabilities=EVERYTHING),
        {"TOKENDRAW_SAMPELR": "native"},
        SettingsWarning,
        "'TOKENDRAW_SAMPELR' is no variable of tokendraw, the nearest known one is 'TOKENDRAW_SAMPLER'. "
        "Correct it, or unset it.",
    ),
]


class TestWarnings:
    @pytest.mark.parametrize(("source", "settings", "category", "message"), WARNINGS, ids=range(3))
    def test_a_warning_comes_once_and_points_at_the_caller_and_strict_raises_it(
        self, dists, monkeypatch, source, settings, category, message
    ):
        dists.add("acme-kernels", "2.5")
        dists.add_plugin("acme", source)
        for variable, value in settings.items():
            monkeypatch.setenv(variable, value)
        first, second = load_and_catch(), load_and_catch()
        assert [(w.category, str(w.message), Path(w.filename)) for w in first] == [
            (category, message, Path(__file__))
        ]
        assert second == []
        monkeypatch.setenv("TOKENDRAW_STRICT", "1")
        for _ in range(2):
            with pytest.raises(category) as raised:
                load_sampler(device="cpu")
            assert str(raised.value) == (  # which claims nothing that does not happen
                f"{message.replace(USING, '')} TOKENDRAW_STRICT=1 makes this warning an error."
            )

    @pytest.mark.parametrize("version", ["2.14.1+cpu", "2.15.0.dev20270101", "3.0"])
    def test_torch_is_the_programs_own_and_no_version_from_the_least_on_is_warned_of(
        self, dists, monkeypatch, version
    ):
        dists.add("torch", version)
        monkeypatch.setenv("TOKENDRAW_STRICT", "1")
        for operation in SERVED_BY_NATIVE:
            assert load(operation, device="cpu").name == "native"
            assert tokendraw.resolve(operation=operation, device="cpu").warnings == ()

    def test_resolving_and_discovering_warn_of_nothing(self, dists, monkeypatch):
        monkeypatch.setenv("TOKENDRAW_SAMPELR", "native")
        dists.add_plugin("acme", NO_LIBRARY)
        tokendraw.discover()
        assert len(tokendraw.resolve(device="cpu").warnings) == 1
