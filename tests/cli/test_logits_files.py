"""Logits from files: every format is read, every other file refused in a sentence; no file is ever run."""

import io
import pickle
import re
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tokendraw.cli.logits_file import LogitsFileError, read_logits

ROWS = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]])
ENDINGS = [".npy", ".npz", ".safetensors", ".pt"]


def write(path, values):
    """Write a tensor in the format of the path's ending."""
    if path.suffix == ".npy":
        np.save(path, values.numpy())
    elif path.suffix == ".npz":
        np.savez(path, logits=values.numpy())
    elif path.suffix == ".safetensors":
        save_file({"logits": values.contiguous()}, path)
    else:
        torch.save(values, path)
    return path


def refusal(path, tensor=None):
    """Message of the reader without the path."""
    with pytest.raises(LogitsFileError) as caught:
        read_logits(path, tensor)
    message = str(caught.value)
    assert message.startswith(f"'{path}' "), message
    assert "\n" not in message
    return message.removeprefix(f"'{path}' ")


DTYPES_IN = {ending: ["float32", "float16"] for ending in (".npy", ".npz")}  # numpy has no bfloat16


@pytest.mark.parametrize(
    ("ending", "dtype"),
    [(e, d) for e in ENDINGS for d in DTYPES_IN.get(e, ["float32", "float16", "bfloat16"])],
)
def test_values_come_as_they_were_saved(tmp_path, ending, dtype):
    values = ROWS.to(getattr(torch, dtype))
    logits_file = read_logits(write(tmp_path / f"x{ending}", values))
    assert torch.equal(logits_file.logits, values)
    assert (logits_file.logits.dtype, logits_file.dtype) == (values.dtype, dtype)
    assert logits_file.tensor == ("logits" if ending in (".npz", ".safetensors") else None)


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


def test_a_parameter_in_a_pt_file_is_read_without_its_gradient(tmp_path):
    logits_file = read_logits(write(tmp_path / "x.pt", torch.nn.Parameter(ROWS)))
    assert torch.equal(logits_file.logits, ROWS)
    assert not logits_file.logits.requires_grad


def test_a_pt_file_of_the_format_before_zip_is_read(tmp_path):
    torch.save(ROWS, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_logits(tmp_path / "x.pt").logits, ROWS)


def write_named(path, names=("logits", "other")):
    tensors = {name: ROWS + i for i, name in enumerate(names)}
    if path.suffix == ".npz":
        np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    else:
        save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pt"])
class TestNamedTensors:
    def test_the_only_one_is_taken(self, tmp_path, ending):
        logits_file = read_logits(write_named(tmp_path / f"x{ending}", ["only"]))
        assert logits_file.tensor == "only"
        assert torch.equal(logits_file.logits, ROWS)

    def test_one_of_several_is_picked_by_name(self, tmp_path, ending):
        logits_file = read_logits(write_named(tmp_path / f"x{ending}"), "other")
        assert logits_file.tensor == "other"
        assert torch.equal(logits_file.logits, ROWS + 1)

    def test_several_need_a_choice(self, tmp_path, ending):
        assert refusal(write_named(tmp_path / f"x{ending}")) == (
            "needs a choice between its tensors 'logits', 'other'. Pick one with --tensor."
        )

    def test_a_name_that_is_not_there_gets_the_nearest(self, tmp_path, ending):
        assert refusal(write_named(tmp_path / f"x{ending}"), "logit") == (
            "needs a tensor 'logit', found 'logits', 'other'. Try --tensor logits."
        )

    def test_a_name_like_no_other_gets_none(self, tmp_path, ending):
        assert refusal(write_named(tmp_path / f"x{ending}"), "hidden_states") == (
            "needs a tensor 'hidden_states', found 'logits', 'other'. Pick one of them."
        )

    def test_of_many_names_some_are_shown(self, tmp_path, ending):
        names = [f"layer{i}" for i in range(10)]
        assert refusal(write_named(tmp_path / f"x{ending}", names)) == (
            "needs a choice between its tensors 'layer0', 'layer1', 'layer2', 'layer3', 'layer4', 'layer5', "
            "'layer6', 'layer7' and 2 more. Pick one with --tensor."
        )

    def test_none_is_refused(self, tmp_path, ending):
        assert refusal(write_named(tmp_path / f"x{ending}", [])) == (
            "needs a tensor, found none in it. Write it again."
        )


@pytest.mark.parametrize("ending", [".npy", ".pt"])
def test_a_name_for_the_only_tensor_without_one_is_refused(tmp_path, ending):
    assert refusal(write(tmp_path / f"x{ending}", ROWS), "logits") == (
        "holds one tensor without a name, but 'logits' was asked for. Leave --tensor out."
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npy", "needs to be a file, found nothing there. Check the path."),
        (".", "needs to be a file, found a directory. Check the path."),
        ("x.csv", "needs the ending .npy, .npz, .safetensors or .pt, found the ending '.csv'. Convert it."),
        ("x", "needs the ending .npy, .npz, .safetensors or .pt, found no ending. Convert it."),
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
        if ending in (".npy", ".npz"):
            assert message == (
                f"needs float32, float16 or float64 values, found {dtype}. Save the logits as one of these "
                "(bfloat16 fits into .safetensors and .pt)."
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
        "(bfloat16 fits into .safetensors and .pt)."
    )


@pytest.mark.parametrize(
    ("tensor", "content"),
    [
        (ROWS.to_sparse(), "a sparse, nested or quantized one"),
        (torch.zeros(2, 3, device="meta"), "one without values"),
    ],
)
def test_a_tensor_that_is_not_dense_is_refused(tmp_path, tensor, content):
    torch.save(tensor, tmp_path / "x.pt")
    assert refusal(tmp_path / "x.pt") == (
        f"needs a dense tensor, found {content}. Save the logits as a dense tensor."
    )


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, "all but one byte"])
def test_a_truncated_file_is_refused(tmp_path, ending, share):
    data = write(tmp_path / f"whole{ending}", torch.randn(4, 64)).read_bytes()
    size = len(data) - 1 if share == "all but one byte" else int(len(data) * share)
    path = tmp_path / f"x{ending}"
    path.write_bytes(data[:size])
    assert refusal(path) == (
        f"needs a complete {ending} file, found {size} bytes that are damaged or cut short. Write it again."
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_prefix_of_a_file_ends_in_a_traceback(tmp_path, ending):
    data = write(tmp_path / f"whole{ending}", ROWS).read_bytes()
    path = tmp_path / f"x{ending}"
    for size in range(1, min(len(data), 300)):
        path.write_bytes(data[:size])
        refusal(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_flipped_byte_ends_in_a_traceback(tmp_path, ending):
    data = bytearray(write(tmp_path / f"whole{ending}", ROWS).read_bytes())
    path = tmp_path / f"x{ending}"
    for spot in range(0, min(len(data), 400), 3):
        damaged = data.copy()
        damaged[spot] ^= 0xFF
        path.write_bytes(damaged)
        try:
            assert read_logits(path).logits.dim() == 2
        except LogitsFileError as error:
            assert "\n" not in str(error)  # noqa: PT017 (a flipped value may as well be read)


@pytest.mark.parametrize("ending", [".npy", ".npz"])
def test_a_header_that_lies_about_the_shape_costs_no_memory(tmp_path, ending):
    path, header = tmp_path / f"x{ending}", {"descr": "<f4", "fortran_order": False, "shape": (10**12, 10)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    if ending == ".npy":
        path.write_bytes(file.getvalue())
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("logits.npy", file.getvalue())
    assert refusal(path) == (
        f"needs a complete {ending} file, found {path.stat().st_size} bytes that are damaged or cut short. "
        "Write it again."
    )


class TestOtherFilesUnderTheEnding:
    @pytest.mark.parametrize(
        ("inside", "ending", "content"),
        [
            (".npy", ".npz", "a .npy array"),
            (".npy", ".pt", "a .npy array"),
            (".npy", ".safetensors", "a .npy array"),
            (".pt", ".npy", "a zip archive, such as .npz or .pt"),
            (".pt", ".safetensors", "a zip archive, such as .npz or .pt"),
            (".safetensors", ".npy", "what looks like a .safetensors file"),
            (".safetensors", ".pt", "what looks like a .safetensors file"),
        ],
    )
    def test_another_of_the_formats(self, tmp_path, inside, ending, content):
        path = tmp_path / f"x{ending}"
        path.write_bytes(write(tmp_path / f"original{inside}", ROWS).read_bytes())
        assert refusal(path) == (
            f"needs to be a {ending} file inside, found {content}. "
            "Give the file the ending of what it holds, or save the logits again."
        )

    @pytest.mark.parametrize(
        ("name", "inside", "content"),
        [
            ("x.npy", b"0.5 1.0 2.0", "other bytes"),
            ("x.pt", b"0.5 1.0 2.0", "other bytes"),
            ("x.npy", b"", "nothing"),
            ("x.npy", pickle.dumps(ROWS.numpy()), "a pickle, which is not loaded"),
        ],
    )
    def test_none_of_the_formats(self, tmp_path, name, inside, content):
        (tmp_path / name).write_bytes(inside)
        assert refusal(tmp_path / name) == (
            f"needs to be a {name[1:]} file inside, found {content}. "
            "Give the file the ending of what it holds, or save the logits again."
        )


class Trap:
    """An object whose pickle writes a file on load."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


class TestCode:
    NOT_LOADED = (
        "needs tensors alone, found a TorchScript program, other Python objects or damaged data, which are not loaded. "
        "Save the tensor itself with torch.save."
    )

    @pytest.fixture
    def trap_file(self, tmp_path):
        """The file written by a loaded trap; no test may leave the file behind."""
        path = tmp_path / "sprung"
        yield path
        assert not path.exists()

    def test_the_trap_works(self, trap_file):
        pickle.loads(pickle.dumps(Trap(trap_file)))
        assert trap_file.exists()
        trap_file.unlink()

    @pytest.mark.parametrize("name", ["x.npy", "x.npz"])
    def test_an_object_array_is_not_loaded(self, tmp_path, trap_file, name):
        array = np.array([Trap(trap_file), 1], dtype=object)
        np.save(tmp_path / name, array) if name == "x.npy" else np.savez(tmp_path / name, array)
        assert refusal(tmp_path / name) == (
            "needs numbers, found an array of Python objects, which is not loaded. "
            "Save the logits as float32."
        )

    @pytest.mark.parametrize("content", ["a dict", "a bare pickle", "a module"])
    def test_other_objects_in_a_pt_file_are_not_loaded(self, tmp_path, trap_file, content):
        path, trap = tmp_path / "x.pt", Trap(trap_file)
        if content == "a bare pickle":
            path.write_bytes(pickle.dumps(trap))
        else:
            torch.save({"logits": ROWS, "trap": trap} if content == "a dict" else torch.nn.Linear(2, 2), path)
        assert refusal(path) == self.NOT_LOADED

    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    def test_a_torchscript_program_is_not_run(self, tmp_path):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "x.pt")
        assert refusal(tmp_path / "x.pt") == self.NOT_LOADED

    @pytest.mark.parametrize(("content", "kind"), [([1.0, 2.0], "list"), (1.5, "float"), (None, "NoneType")])
    def test_other_content_is_named(self, tmp_path, content, kind):
        torch.save(content, tmp_path / "x.pt")
        assert refusal(tmp_path / "x.pt") == (
            f"needs a tensor or a dict of tensors, found an object of type {kind}. "
            "Save the tensor itself with torch.save."
        )


@pytest.mark.parametrize(
    ("library", "ending"), [("numpy", ".npy"), ("numpy", ".npz"), ("safetensors", ".safetensors")]
)
def test_a_missing_library_is_named_with_the_command_that_brings_it(tmp_path, monkeypatch, library, ending):
    path = write(tmp_path / f"x{ending}", ROWS)
    monkeypatch.setitem(sys.modules, library, None)
    assert refusal(path) == (
        f"needs the library '{library}' to be read, found it not installed. Run `pip install {library}`."
    )


def test_a_file_that_may_not_be_read_says_so(tmp_path, monkeypatch):
    path = write(tmp_path / "x.npy", ROWS)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(
        LogitsFileError, match=re.escape("cannot be read: Permission denied. Check its permis")
    ):
        read_logits(path)
