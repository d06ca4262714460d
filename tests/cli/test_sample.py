"""``tokendraw sample``: every format is read, every other file refused in a sentence, and the library's tokens."""

import io
import json
import pickle
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tokendraw
from command_line import DRAWN_BY_NATIVE, NATIVE_ON_CPU, call
from fake_dists import EVERYTHING, plugin
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.cli.drawing import LogitsFileError, read_logits

ROWS = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]])
ENDINGS = [".npy", ".safetensors"]
NAN, INF = float("nan"), float("inf")


def write(path, values):
    """Write a tensor in the format of the path's ending."""
    if path.suffix == ".npy":
        np.save(path, values.numpy())
    else:
        save_file({"logits": values.contiguous()}, path)
    return path


def refusal(path, tensor=None):
    """Message of the reader without the path."""
    with pytest.raises(LogitsFileError) as caught:
        read_logits(path, tensor)
    message = str(caught.value)
    assert message.startswith(f"'{path}' "), message
    assert "\n" not in message
    return message.removeprefix(f"'{path}' ")


DTYPES_IN = {".npy": ["float32", "float16"]}  # numpy has no bfloat16


@pytest.mark.parametrize(
    ("ending", "dtype"),
    [(e, d) for e in ENDINGS for d in DTYPES_IN.get(e, ["float32", "float16", "bfloat16"])],
)
def test_values_come_as_they_were_saved(tmp_path, ending, dtype):
    values = ROWS.to(getattr(torch, dtype))
    logits_file = read_logits(write(tmp_path / f"x{ending}", values))
    assert torch.equal(logits_file.logits, values)
    assert (logits_file.logits.dtype, logits_file.dtype) == (values.dtype, dtype)
    assert logits_file.tensor == ("logits" if ending == ".safetensors" else None)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("values", "rows"),
    [
        (ROWS[0], ROWS[:1]),
        (torch.tensor([[0.1, 0.2]], dtype=torch.float64), torch.tensor([[0.1, 0.2]])),
        (torch.zeros(3, 1), torch.zeros(3, 1)),
        (torch.tensor([[NAN, INF, -INF]]), torch.tensor([[NAN, INF, -INF]])),
        (torch.tensor([[NAN, INF, -INF]], dtype=torch.float64), torch.tensor([[NAN, INF, -INF]])),
    ],
    ids=["one row", "float64", "a vocabulary of one", "NaN and infinities", "both in float64"],
)
def test_values_become_rows_of_at_most_float32(tmp_path, ending, values, rows):
    logits_file = read_logits(write(tmp_path / f"x{ending}", values))
    torch.testing.assert_close(logits_file.logits, rows, rtol=0, atol=0, equal_nan=True)
    assert logits_file.dtype == str(values.dtype).removeprefix("torch.")


def test_the_ending_may_be_in_capitals(tmp_path):
    np.save(tmp_path / "x.npy", ROWS.numpy())
    (tmp_path / "x.npy").rename(tmp_path / "X.NPY")
    assert torch.equal(read_logits(tmp_path / "X.NPY").logits, ROWS)


@pytest.mark.parametrize("array", [ROWS.numpy().astype(">f4"), np.asfortranarray(ROWS.numpy())])
def test_npy_of_another_byte_or_axis_order_is_read(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    assert torch.equal(read_logits(tmp_path / "x.npy").logits, ROWS)


def write_named(path, names):
    save_file({name: ROWS + i for i, name in enumerate(names)}, path)
    return path


@pytest.mark.parametrize(("names", "asked", "taken"), [(["only"], None, 0), (["a", "b"], "b", 1)])
def test_the_only_tensor_or_the_one_that_is_named_is_taken(tmp_path, names, asked, taken):
    logits_file = read_logits(write_named(tmp_path / "x.safetensors", names), asked)
    assert logits_file.tensor == names[taken]
    assert torch.equal(logits_file.logits, ROWS + taken)


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        (
            ["logits", "other"],
            None,
            "needs a choice between its tensors 'logits', 'other'. Pick one with --tensor.",
        ),
        (
            ["logits", "other"],
            "logit",
            "needs a tensor 'logit', found 'logits', 'other'. Try --tensor logits.",
        ),
        (
            ["logits", "other"],
            "hidden_states",
            "needs a tensor 'hidden_states', found 'logits', 'other'. Pick one of them.",
        ),
        (
            [f"layer{i}" for i in range(10)],
            None,
            "needs a choice between its tensors 'layer0', 'layer1', 'layer2', 'layer3', 'layer4', 'layer5', "
            "'layer6', 'layer7' and 2 more. Pick one with --tensor.",
        ),
        ([], None, "needs a tensor, found none in it. Write it again."),
    ],
    ids=["several", "a misspelling", "another name", "many", "none"],
)
def test_a_file_without_that_tensor_is_refused(tmp_path, names, asked, message):
    assert refusal(write_named(tmp_path / "x.safetensors", names), asked) == message


def test_a_name_for_the_only_array_without_one_is_refused(tmp_path):
    assert refusal(write(tmp_path / "x.npy", ROWS), "logits") == (
        "holds one array without a name, but 'logits' was asked for. Leave --tensor out."
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npy", "needs to be a file, found nothing there. Check the path."),
        (".", "needs to be a file, found a directory. Check the path."),
        ("x.csv", "needs the ending .npy or .safetensors, found the ending '.csv'. Convert it."),
        (
            "x.npz",
            "needs the ending .npy or .safetensors, found the ending '.npz'. Convert it: numpy.save each array as "
            ".npy.",
        ),
        (
            "x.pt",
            "needs the ending .npy or .safetensors, found the ending '.pt'. Convert it: save the tensor with "
            "safetensors.torch.save_file.",
        ),
        ("x", "needs the ending .npy or .safetensors, found no ending. Convert it."),
    ],
)
def test_a_path_of_another_kind_is_refused(tmp_path, name, message):
    if name.startswith("x"):
        (tmp_path / name).write_text("1,2")
    assert refusal(tmp_path / name) == message


@pytest.mark.parametrize("ending", ENDINGS)
class TestShapesAndDtypes:
    @pytest.mark.parametrize(("shape", "rank"), [((), 0), ((2, 3, 4), 3)])
    def test_another_rank(self, tmp_path, ending, shape, rank):
        assert refusal(write(tmp_path / f"x{ending}", torch.zeros(shape))) == (
            f"needs shape [V] or [B, V], found rank {rank}, shape {list(shape)}. Save the rows to draw from."
        )

    @pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
    def test_no_rows_or_no_tokens(self, tmp_path, ending, shape):
        assert refusal(write(tmp_path / f"x{ending}", torch.zeros(shape))) == (
            f"needs at least one row and one token, found shape {list(shape)}. Write it again."
        )

    @pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "complex64"])
    def test_values_that_are_no_logits(self, tmp_path, ending, dtype):
        message = refusal(write(tmp_path / f"x{ending}", torch.ones(2, 3).to(getattr(torch, dtype))))
        if ending == ".npy":
            assert message == (
                f"needs float32, float16 or float64 values, found {dtype}. Save the logits as one of these "
                "(bfloat16 fits into .safetensors)."
            )
        else:
            assert message == (
                f"needs float32, bfloat16 or float16 values, found {dtype}. Save the logits as one of these."
            )

    def test_a_float64_that_float32_cannot_hold(self, tmp_path, ending):
        values = torch.tensor([[0.0, -1e300]], dtype=torch.float64)
        assert refusal(write(tmp_path / f"x{ending}", values)) == (
            "needs values within float32, found -1e+300 in float64. Scale the logits."
        )


def test_npy_of_an_unknown_kind_of_values_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3, dtype="V2"))  # how ml_dtypes saves bfloat16
    assert refusal(tmp_path / "x.npy") == (
        "needs float32, float16 or float64 values, found |V2. Save the logits as one of these "
        "(bfloat16 fits into .safetensors)."
    )


def test_a_header_that_lies_about_the_shape_costs_no_memory(tmp_path):
    path, header = tmp_path / "x.npy", {"descr": "<f4", "fortran_order": False, "shape": (10**12, 10)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    path.write_bytes(file.getvalue())
    size = path.stat().st_size
    assert refusal(path) == (
        f"needs to be a complete .npy file of numbers, found {size} bytes that are not. Write it again."
    )


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "inside", ["half of it", "all but one byte", "the other format", b"0.5 1.0 2.0", b""]
)
def test_a_damaged_file_or_another_under_the_ending_is_refused(tmp_path, ending, inside):
    whole = {each: write(tmp_path / f"whole{each}", ROWS).read_bytes() for each in ENDINGS}
    if isinstance(inside, str):
        (other,) = {*ENDINGS} - {ending}
        data = whole[ending]
        inside = {"half of it": data[: len(data) // 2], "all but one byte": data[:-1]}.get(
            inside, whole[other]
        )
    path = tmp_path / f"x{ending}"
    path.write_bytes(inside)
    assert refusal(path) == (
        f"needs to be a complete {ending} file of numbers, found {len(inside)} bytes that are not. Write it again."
    )


class Trap:
    """An object whose pickle writes a file on load."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


def test_an_object_array_is_not_loaded(tmp_path):
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works
    sprung.unlink()
    np.save(tmp_path / "x.npy", np.array([Trap(sprung), 1], dtype=object))
    assert refusal(tmp_path / "x.npy").startswith("needs to be a complete .npy file of numbers, found ")
    assert not sprung.exists()


@pytest.mark.parametrize(("library", "ending"), [("numpy", ".npy"), ("safetensors", ".safetensors")])
def test_a_missing_library_is_named_with_the_command_that_brings_it(tmp_path, monkeypatch, library, ending):
    path = write(tmp_path / f"x{ending}", ROWS)
    monkeypatch.setitem(sys.modules, library, None)
    assert refusal(path) == (
        f"needs the library '{library}' to be read, found it not installed. Run `pip install {library}`."
    )


def test_a_file_that_may_not_be_read_says_so(tmp_path, monkeypatch):
    path = write(tmp_path / "x.npy", ROWS)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "load", refuse)
    assert refusal(path) == "cannot be read: Permission denied. Check its permissions."


LOGITS = torch.tensor(
    [
        [1.0, 0.0, 3.0, -1.0, 2.0],
        [0.0, NAN, 1.0, 0.5, -INF],
        [NAN] * 5,
        [0.0, INF, 0.0, 0.0, 0.0],
    ]
)


@pytest.fixture
def file(tmp_path):
    """A file with a plain row of logits, a row with a NaN, a row of NaNs, and a row with +inf."""
    np.save(tmp_path / "logits.npy", LOGITS.numpy())
    return tmp_path / "logits.npy"


@pytest.fixture
def equal_rows(tmp_path):
    """Forty equal rows: only the noise decides."""
    np.save(tmp_path / "x.npy", np.zeros((40, 1000), np.float32))
    return tmp_path / "x.npy"


def sample(*arguments, standard_input=None):
    return call("sample", *NATIVE_ON_CPU, *arguments, standard_input=standard_input)


def in_json(*arguments):
    result = sample(*arguments, "--json")
    assert (result.stderr, result.exit_code) == ("", 0)
    return json.loads(result.stdout)


def tokens(*arguments):
    return [row["token_id"] for row in in_json(*arguments)["rows"]]


def test_one_line_a_row(file):
    result = sample(file, "--temperature", "0")
    assert result.stdout == (
        "row  token  valid\n0    2      yes\n1    2      no\n2    0      no\n3    1      yes\n"
    )
    assert result.stderr == (
        DRAWN_BY_NATIVE
        + "2 of 4 rows hold NaN, or nothing above -inf, which gives token 0: shown as not valid\n"
    )
    assert result.exit_code == 0


def test_quiet_says_nothing_on_stderr(file):
    result = sample(file, "-q")
    assert (result.stderr, result.exit_code) == ("", 0)


def test_logprobs_add_the_value_the_rank_the_mass_and_the_best(tmp_path):
    np.save(tmp_path / "x.npy", torch.tensor([[0.75, 0.25, 0.0]]).log().numpy())
    result = sample(tmp_path / "x.npy", "--temperature", "0", "--logprobs", "3", "-q")
    assert result.stdout == (
        "row  token  valid  raw_logprobs  rank  kept mass  best\n"
        "0    0      yes    -0.2877       1     1.0000     0 (-0.2877), 1 (-1.3863), 2 (-inf)\n"
    )


def test_json_is_complete(file):
    output = in_json(file, "--temperature", "0", "--logprobs", "2", "--logprobs-mode", "raw_logits")
    resolution = output.pop("resolution")
    assert (resolution["chosen"], resolution["need"]["logprobs_mode"]) == ("native", "raw_logits")
    assert (resolution["need"]["dtype"], resolution["need"]["vocab_size"]) == ("float32", 5)
    rows = output.pop("rows")
    assert output == {
        "schema_version": 1,
        "error": None,
        "file": str(file),
        "tensor": None,
        "shape": [4, 5],
        "dtype": "float32",
        "sampler": "native",
        "device": "cpu",
        "logprobs_mode": "raw_logits",
    }
    assert rows[0] == {
        "row": 0,
        "token_id": 2,
        "valid": True,
        "logprob": 3.0,
        "rank": 1,
        "log_kept_mass": 0.0,
        "best": [{"token_id": 2, "logprob": 3.0}, {"token_id": 4, "logprob": 2.0}],
    }
    assert [row["valid"] for row in rows] == [True, False, False, True]
    assert rows[3]["logprob"] is None  # +inf is no number in JSON


def test_without_logprobs_json_holds_tokens_alone(file):
    assert in_json(file, "--temperature", "0")["rows"] == [
        {"row": 0, "token_id": 2, "valid": True},
        {"row": 1, "token_id": 2, "valid": False},
        {"row": 2, "token_id": 0, "valid": False},
        {"row": 3, "token_id": 1, "valid": True},
    ]


def test_every_parameter_reaches_the_sampler(tmp_path):
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(1)) * 2
    save_file({"logits": logits}, tmp_path / "x.safetensors")
    options = {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "typical_p": 0.95,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.02,
        "seed": 11,
        "filter_order": "joint",
        "logprobs": 2,
    }
    flags = [text for k, v in options.items() for text in (f"--{k.replace('_', '-')}", v)]
    output = in_json(tmp_path / "x.safetensors", *flags, "--position", "5")
    sampler = tokendraw.load_sampler("native", device="cpu")
    metadata = SamplingMetadata.from_params([SamplingParams(**options)] * 64, positions=[5] * 64)
    expected = sampler.sample(logits, metadata)
    assert [row["token_id"] for row in output["rows"]] == expected.token_ids.tolist()
    assert [row["log_kept_mass"] for row in output["rows"]] == expected.log_kept_mass.tolist()
    assert [[e["token_id"] for e in row["best"]] for row in output["rows"]] == (
        expected.logprobs.token_ids[:, 1:].tolist()
    )


def test_without_a_seed_every_run_draws_others(equal_rows):
    assert tokens(equal_rows) != tokens(equal_rows)


def test_in_a_sequence_row_i_stands_at_position_plus_i(equal_rows):
    token_ids = tokens(equal_rows, "--seed", 3, "--position", 7, "--sequence")
    assert len(set(token_ids)) > 30
    assert set(tokens(equal_rows, "--seed", 3, "--position", 11)) == {token_ids[4]}


def test_float64_is_stated(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.array([1.0, 5.0]))
    result = sample(path, "--temperature", "0")
    assert result.stdout == "row  token  valid\n0    1      yes\n"
    assert result.stderr == DRAWN_BY_NATIVE + "the file holds float64, rounded to float32\n"
    assert in_json(path)["dtype"] == "float64"


def test_bfloat16_is_drawn_from_as_it_is(tmp_path):
    save_file({"a": LOGITS.bfloat16(), "b": LOGITS[:1]}, tmp_path / "x.safetensors")
    output = in_json(tmp_path / "x.safetensors", "--tensor", "a", "--temperature", "0")
    assert (output["tensor"], output["dtype"]) == ("a", "bfloat16")
    assert output["resolution"]["need"]["dtype"] == "bfloat16"
    assert [row["token_id"] for row in output["rows"]] == [2, 2, 0, 1]


def test_a_sampler_without_a_valid_flag_says_nothing_about_the_rows(dists, tmp_path):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("valid_flag=True, ", "")))
    np.save(tmp_path / "nan.npy", np.array([[0, NAN, 1], [0, 1, 0]], np.float32))
    result = call("sample", tmp_path / "nan.npy", "--device", "cpu")
    assert result.stdout == "row  token  valid\n0    1      -\n1    1      -\n"
    assert "not valid" not in result.stderr
    rows = json.loads(call("sample", tmp_path / "nan.npy", "--device", "cpu", "--json").stdout)["rows"]
    assert [row["valid"] for row in rows] == [None, None]


def test_a_filter_from_moments_is_an_option(tmp_path):
    np.save(tmp_path / "x.npy", np.tile(np.array([3, 2, 1, 0], np.float32), (50, 1)))
    result = call("sample", tmp_path / "x.npy", "--filter", "top_n_sigma=0.5", "--json", *NATIVE_ON_CPU)
    assert {row["token_id"] for row in json.loads(result.stdout)["rows"]} == {0}
    result = call("sample", tmp_path / "x.npy", "--filter", "top_n_sigma=-1")
    assert result.exit_code == 2


def test_one_invalid_row_is_told_in_the_singular(tmp_path):
    np.save(tmp_path / "x.npy", np.array([NAN, 1.0], np.float32))
    assert sample(tmp_path / "x.npy").stderr == (
        DRAWN_BY_NATIVE
        + "1 of 1 row holds NaN, or nothing above -inf, which gives token 0: shown as not valid\n"
    )


class TestStandardInput:
    """``-`` as file: the content decides the format."""

    @pytest.mark.parametrize("ending", [".npy", ".safetensors"])
    def test_each_format_is_read(self, tmp_path, ending):
        path = tmp_path / f"x{ending}"
        np.save(path, LOGITS.numpy()) if ending == ".npy" else save_file({"logits": LOGITS}, path)
        piped = sample("-", "--temperature", "0", standard_input=path.read_bytes())
        assert piped.stdout == (
            "row  token  valid\n0    2      yes\n1    2      no\n2    0      no\n3    1      yes\n"
        )
        assert piped.exit_code == 0
        assert piped.stdout == sample(path, "--temperature", "0").stdout

    @pytest.mark.parametrize("option", ["--tensor", "--key"])
    def test_one_of_several_arrays_is_picked_by_name(self, tmp_path, option):
        save_file({"a": LOGITS, "b": LOGITS[3:].clone()}, tmp_path / "x.safetensors")
        options = ("-", option, "b", "--temperature", "0", "--json")
        output = json.loads(sample(*options, standard_input=(tmp_path / "x.safetensors").read_bytes()).stdout)
        assert (output["file"], output["tensor"], output["shape"]) == ("-", "b", [1, 5])
        assert [row["token_id"] for row in output["rows"]] == [1]

    @pytest.mark.parametrize(
        ("content", "refusal"),
        [
            (
                content,
                f"needs to be a complete .safetensors file of numbers, found {len(content)} bytes that are not. "
                "Write it again.",
            )
            for content in (b"", b"0.5 1.0 2.0", b"PK\x03\x04 and no more")
        ],
    )
    def test_anything_else_is_refused_in_one_line(self, content, refusal):
        result = sample("-", standard_input=content)
        assert (result.stdout, result.exit_code) == ("", 1)
        assert result.stderr == f"'standard input' {refusal}\n"


@pytest.mark.gpu
def test_on_a_gpu_the_tokens_are_those_of_the_cpu(tmp_path):
    logits = torch.randn(32, 5000, generator=torch.Generator().manual_seed(2)) * 3
    np.save(tmp_path / "x.npy", logits.numpy())
    options = (tmp_path / "x.npy", "--seed", "5", "--sequence", "--top-p", "0.9", "--sampler", "native")
    assert tokens(*options, "--device", "cuda") == tokens(*options, "--device", "cpu")
