"""Facts about this machine, from torch, from the drivers, and from a driver made of plain Python."""

import ctypes
import subprocess
import sys
import types

import pytest
import torch

import tokendraw
from tokendraw import InvalidParameterError, SamplerUnavailableError, load_sampler
from tokendraw.backends import machine
from tokendraw.plugin import Host
from tokendraw.resolution import detect_host

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")


class FakeDriver:
    """Answers as ``libcuda.so.1`` does, for the given devices."""

    def __init__(self, *devices, init_status=0):
        self.devices = devices
        self.cuInit = lambda flags: init_status
        self.cuDriverGetVersion = lambda out: self._answer(out, 12090)
        self.cuDeviceGetCount = lambda out: self._answer(out, len(devices))
        self.cuDeviceGet = self._answer

    def cuDeviceGetName(self, buffer, size, device):  # noqa: N802
        buffer.value = self.devices[device][0].encode()
        return 0

    def cuDeviceGetAttribute(self, out, attribute, device):  # noqa: N802
        found = self.devices[device][1].get(attribute)
        return 1 if found is None else self._answer(out, found)

    @staticmethod
    def _answer(out, value):
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0


def h200(index=0):
    return f"NVIDIA H200 #{index}", {75: 9, 76: 0, 16: 132}


@pytest.fixture
def torch_not_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")


ABSENT = ["xpu", "xpu:1", "mps", "hpu", "privateuseone", "vulkan", "xla"]


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("name", ABSENT)
def test_a_device_that_is_not_there_is_refused_with_what_is_there(monkeypatch, name, is_loaded):
    if torch.cuda.is_available() or detect_host().device_type == "mps":
        pytest.skip("needs a machine with a CPU alone")
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(SamplerUnavailableError) as error:
        detect_host(name)
    assert str(error.value) == (
        f"{name!r} needs a device of that name, found cpu. Pass device='cpu', or mend that."
    )


def test_what_brings_a_device_to_torch_is_taken_at_its_word_while_torch_is_not_loaded(
    dists, torch_not_loaded
):
    with pytest.raises(InvalidParameterError):
        detect_host("npu")
    (info,) = dists.add("torch-npu").glob("*.dist-info")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:load\n", encoding="utf-8")
    assert [detect_host(name) for name in ("npu:1", "hpu")] == [
        Host(device_type="npu"),
        Host(device_type="hpu"),
    ]
    for device in ("gpu", "meta"):
        with pytest.raises(InvalidParameterError):
            detect_host(device)


NEEDS = "'device' needs a name such as cpu, cuda or cuda:1, found"
REFUSED = {
    "": "''. Pass one of those.",
    "gpu": "'gpu'. Pass device='cuda'.",
    "gpu:1": "'gpu:1'. Pass device='cuda'.",
    "Cuda": "'Cuda'. Pass device='cuda'.",
    "cuda:-1": "'cuda:-1'. Pass device='cuda'.",
    "rocm": "'rocm'. Pass device='cuda' for AMD GPUs too.",
    "hip:0": "'hip:0'. Pass device='cuda' for AMD GPUs too.",
    "cpu:7": "'cpu:7', but there is one cpu. Pass device='cpu'.",
    "meta": "'meta', which holds no values. Pass one of those.",
    "cup": "'cup'. Pass device='cpu'.",
    "cude": "'cude'. Pass device='cuda'.",
    "tpu": "'tpu'. Pass device='xla'.",
    "npu": "'npu'. Pass one of those.",
    "toaster": "'toaster'. Pass one of those.",
    "\x1b[31mcpu": r"'\x1b[31mcpu'. Pass one of those.",
    "cpu:" + "9" * 5000: f"'cpu:{'9' * 195} .... Pass device='cpu'.",
}


@pytest.mark.parametrize("device", REFUSED, ids=lambda device: ascii(device)[:20])
def test_what_is_no_device_is_the_same_error_for_every_caller(device):
    calls = [(call, device) for call in (detect_host, resolve_on, load_on)]
    if device in ("meta", "cpu:7"):
        calls += [(call, torch.device(device)) for call in (resolve_on, load_on)]
    for call, given in calls:
        with pytest.raises(InvalidParameterError) as error:
            call(given)
        assert str(error.value) == f"{NEEDS} {REFUSED[device]}"


def resolve_on(device):
    return tokendraw.resolve(device=device)


def load_on(device):
    return load_sampler("native", device=device)


def test_the_cpu_is_the_cpu_under_any_of_its_names():
    for device in (torch.device("cpu:0"), "cpu:0", "cpu"):
        assert load_on(device).device == torch.device("cpu")
    assert detect_host("cpu:0") == detect_host("cpu") == Host(device_type="cpu")
    assert str(detect_host("cpu")) == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cpu:7"])
def test_the_command_line_gives_the_same_answer_without_torch(device):
    code = (
        "import sys; from tokendraw.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "resolve", "--device", device],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr.replace("--device ", "device=").replace("'--device'", "'device'").replace("'", "") == (
        f"{NEEDS} {REFUSED[device]}\n".replace("'", "")
    )
    assert (run.stdout, run.returncode) == ("", 2)


@no_gpu
def test_without_a_gpu_the_default_is_the_cpu_and_asking_for_cuda_says_why_not():
    assert detect_host() == Host(device_type="cpu")
    reason = "sees no device" if torch.version.cuda or torch.version.hip else "is built for the CPU alone"
    with pytest.raises(SamplerUnavailableError) as error:
        detect_host("cuda:0")
    assert str(error.value) == (
        f"'cuda:0' needs a CUDA or ROCm device, found none to use: the installed torch {reason}. "
        "Pass device='cpu', or mend that."
    )


@pytest.mark.gpu
def test_torch_and_the_driver_tell_the_same():
    by_torch = detect_host("cuda:0")
    code = (
        "import sys; from tokendraw.resolution import detect_host; "
        "print(detect_host('cuda:0')); assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(by_torch)
    assert by_torch.cuda_version is not None


@pytest.mark.gpu
def test_an_index_beyond_the_last_gpu_says_how_many_there_are():
    count = torch.cuda.device_count()
    with pytest.raises(SamplerUnavailableError) as error:
        detect_host(f"cuda:{count}")
    assert str(error.value) == (
        f"'cuda:{count}' needs a CUDA or ROCm device, found none to use: "
        f"its index needs {count + 1} devices, found {count}. Pass device='cpu', or mend that."
    )


# Without torch in the process


@pytest.fixture
def built_for(tmp_path, monkeypatch, torch_not_loaded):
    """Installs a torch distribution with a given platform in version.py."""

    def install(version, version_py):
        info = tmp_path / f"torch-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: torch\nVersion: {version}\n", encoding="utf-8")
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(version_py, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)

    return install


CUDA_BUILD = "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
XPU_BUILD = "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = '20250300'\n"
ROCM_BUILD = "cuda: Optional[str] = None\nhip: Optional[str] = '7.0.1'\n"


@pytest.mark.parametrize(
    ("version", "version_py"),
    [
        ("2.13.0+cpu", ""),
        ("2.13.0+cpu", CUDA_BUILD),
        ("2.13.0", "cuda: Optional[str] = None\nhip: Optional[str] = None\n"),
    ],
)
def test_a_cpu_build_makes_the_host_a_cpu_whatever_the_driver_says(
    built_for, monkeypatch, version, version_py
):
    monkeypatch.setattr(machine, "_cuda_driver", lambda: FakeDriver(h200()))
    built_for(version, version_py)
    assert detect_host().device_type in ("cpu", "mps")
    assert "torch" not in sys.modules


def test_a_build_for_xpu_is_taken_at_its_word_and_has_no_other_gpu(built_for):
    built_for("2.13.0+xpu", XPU_BUILD)
    assert detect_host("xpu") == Host(device_type="xpu")
    with pytest.raises(SamplerUnavailableError, match="the installed torch is built for the XPU alone"):
        detect_host("cuda")


@pytest.mark.parametrize(
    ("version", "version_py"),
    [("2.13.0", CUDA_BUILD), ("2.13.0+cu130", CUDA_BUILD), ("2.13.0a0", "debug = False\n")],
)
def test_a_cuda_build_and_an_unknown_one_ask_the_nvidia_driver(
    built_for, tmp_path, monkeypatch, version, version_py
):
    monkeypatch.setattr(machine, "TOPOLOGY", tmp_path / "absent")
    monkeypatch.setattr(machine, "_cuda_driver", lambda: FakeDriver(h200(0), h200(1)))
    built_for(version, version_py)
    assert detect_host().name == "NVIDIA H200 #0"
    assert detect_host("cuda:1") == Host(
        device_type="cuda",
        name="NVIDIA H200 #1",
        compute_capability=(9, 0),
        sm_count=132,
        cuda_version=(12, 9),
    )
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("driver", "device", "reason"),
    [
        (FakeDriver(h200(0), h200(1)), "cuda:2", "its index needs 3 devices, found 2"),
        (FakeDriver(init_status=100), "cuda", "the driver lists no device"),
        (FakeDriver(init_status=803), "cuda", "the NVIDIA driver's cuInit failed with status 803"),
        (FakeDriver(("bare", {})), "cuda", "the NVIDIA driver's cuDeviceGetAttribute failed with status 1"),
    ],
)
def test_a_driver_without_the_device_or_that_fails_says_so(built_for, monkeypatch, driver, device, reason):
    monkeypatch.setattr(machine, "_cuda_driver", lambda: driver)
    built_for("2.13.0", CUDA_BUILD)
    with pytest.raises(SamplerUnavailableError) as error:
        detect_host(device)
    assert str(error.value) == (
        f"{device!r} needs a CUDA or ROCm device, found none to use: {reason}. Pass device='cpu', or mend that."
    )


def test_a_rocm_build_asks_the_amd_driver_for_gpus_in_numerical_order_without_cpus(
    built_for, tmp_path, monkeypatch
):
    versions = {0: "0", 10: "90402", 2: "90010", 4: "unknown", 11: "90500", 12: "120001", 13: "120500"}
    nodes = {node: f"cpu_cores_count 0\ngfx_target_version {version}\n" for node, version in versions.items()}
    for node, text in (nodes | {3: ""}).items():
        (tmp_path / "nodes" / str(node)).mkdir(parents=True)
        (tmp_path / "nodes" / str(node) / "properties").write_text(text, encoding="ascii")
    built_for("2.13.0+rocm7.0", ROCM_BUILD)
    monkeypatch.setattr(machine, "TOPOLOGY", tmp_path / "absent")
    with pytest.raises(SamplerUnavailableError, match="absent lists no GPU"):
        detect_host("cuda")
    monkeypatch.setattr(machine, "TOPOLOGY", tmp_path / "nodes")
    architectures = ("gfx90a", "gfx942", "gfx950", "gfx1201", "gfx1250")
    assert [detect_host(f"cuda:{index}").rocm_arch for index in range(5)] == list(architectures)
    assert detect_host() == Host(device_type="rocm", rocm_arch="gfx90a")


# With torch in the process


def test_a_loaded_rocm_torch_tells_the_architecture(monkeypatch):
    properties = types.SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_properties=lambda index: properties,
    )
    version = types.SimpleNamespace(cuda=None, hip="7.0.1")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda, version=version))
    assert detect_host() == Host(device_type="rocm", name="AMD Instinct MI300X", rocm_arch="gfx942")


def test_another_accelerator_that_torch_sees_goes_before_the_cpu(monkeypatch):
    fake = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: False),
        version=types.SimpleNamespace(cuda=None, hip=None),
        accelerator=types.SimpleNamespace(
            is_available=lambda: True, current_accelerator=lambda: types.SimpleNamespace(type="xpu")
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert detect_host() == Host(device_type="xpu")
