"""Logits from files: every format is read, every other file refused in a sentence; no file is ever run."""

import io
import pickle
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tokendraw.cli.sample import LogitsFileError, read_logits

ROWS = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]])
ENDINGS = [".npy", ".safetensors"]


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


NAN, INF = float("nan"), float("inf")


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
