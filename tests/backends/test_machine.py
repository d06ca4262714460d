"""Facts about this machine, from torch, from the drivers, and from a driver made of plain Python."""

import ctypes
import subprocess
import sys
import types
from dataclasses import astuple
from pathlib import Path

import pytest
import torch

import tokendraw
from call_tables import pairs
from tokendraw import InvalidParameterError, SamplerUnavailableError, load_sampler
from tokendraw.backends import machine
from tokendraw.plugin import Host
from tokendraw.resolution import detect_host

CPU = Host(device_type="cpu")
a_cpu_alone = pytest.mark.skipif(
    torch.cuda.is_available() or detect_host() != CPU, reason="is about a machine with a CPU alone"
)


class FakeDriver:
    """Answers as ``libcuda.so.1`` does, for the given devices: each a name and its attributes."""

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


H200S = FakeDriver(*((f"NVIDIA H200 #{index}", {75: 9, 76: 0, 16: 132}) for index in range(2)))
NODES = {0: "0", 10: "90402", 2: "90010", 3: "", 4: "unknown", 11: "90500", 12: "120001", 13: "120500"}
"""The version of the target of each node of the AMD driver, of which the first is a CPU."""


def detected(device=None):
    """Return the facts about a device, or why there are none."""
    try:
        return ", ".join(str(fact) for fact in astuple(detect_host(device)) if fact)
    except (InvalidParameterError, SamplerUnavailableError) as error:
        return str(error)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """What the calls of ``machines.txt`` are made of."""

    def built(version, cuda=None, hip=None, xpu=None, device=None, driver=H200S, nodes="absent"):
        """Detect a device where no torch is loaded, but installed, built for some platform."""
        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(machine, "_cuda_driver", lambda: driver)
        monkeypatch.setattr(machine, "TOPOLOGY", Path(nodes) if nodes == "absent" else tmp_path / nodes)
        for node, target in NODES.items():
            folder = tmp_path / "nodes" / str(node)
            folder.mkdir(parents=True)
            (folder / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {target}\n")
        info = tmp_path / f"torch-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: torch\nVersion: {version}\n", encoding="utf-8")
        (tmp_path / "torch").mkdir()
        platforms = {"cuda": cuda, "hip": hip, "xpu": xpu}
        written = [f"{name}: Optional[str] = {value!r}\n" for name, value in platforms.items()]
        (tmp_path / "torch/version.py").write_text("" if "a0" in version else "".join(written))
        monkeypatch.syspath_prepend(tmp_path)
        found = detected(device)
        assert "torch" not in sys.modules
        return found

    return {"built": built, "detected": detected, "FakeDriver": FakeDriver}


@pytest.mark.parametrize(("call", "found"), pairs(Path(__file__).with_name("machines.txt")))
def test_what_is_found_of_a_machine_is_as_written(words, call, found):
    assert eval(call, words) == found


def resolve_on(device):
    return tokendraw.resolve(device=device)


def load_on(device):
    return load_sampler("native", device=device)


@pytest.mark.parametrize("device", ["gpu", "cpu:7", "meta"])
def test_what_is_no_device_is_the_same_error_for_every_caller(device):
    calls = [(call, device) for call in (resolve_on, load_on)]
    if device != "gpu":
        calls += [(call, torch.device(device)) for call in (resolve_on, load_on)]
    for call, given in calls:
        with pytest.raises(InvalidParameterError) as error:
            call(given)
        assert str(error.value) == detected(device)
    code = (
        "import sys; from tokendraw.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "resolve", "--device", device],
        capture_output=True,
        text=True,
        check=False,
    )
    told = run.stderr.replace("--device ", "device=").replace("'--device'", "'device'").replace("'", "")
    assert told == f"{detected(device)}\n".replace("'", "")
    assert (run.stdout, run.returncode) == ("", 2)


def test_the_cpu_is_the_cpu_under_any_of_its_names():
    for device in (torch.device("cpu:0"), "cpu:0", "cpu"):
        assert load_on(device).device == torch.device("cpu")
    assert (detect_host("cpu:0"), detect_host("cpu"), str(CPU)) == (CPU, CPU, "cpu")


@a_cpu_alone
@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("name", ["xpu", "xpu:1", "mps", "hpu", "privateuseone", "vulkan", "xla"])
def test_a_device_that_is_not_there_is_refused_with_what_is_there(monkeypatch, name, is_loaded):
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "torch")
    assert (
        detected(name) == f"'{name}' needs a device of that name, found cpu. Pass device='cpu', or mend that."
    )


def test_an_extension_of_torch_names_its_device_while_torch_is_not_loaded(dists, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert "needs a name such as" in detected("npu")
    (info,) = dists.add("torch-npu").glob("*.dist-info")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:load\n", encoding="utf-8")
    assert [detected("npu:1"), detected("hpu")] == ["npu", "hpu"]
    assert all("needs a name such as" in detected(device) for device in ("gpu", "meta"))


def test_a_loaded_torch_tells_the_architecture_and_accelerators_precede_the_cpu(monkeypatch):
    properties = types.SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_properties=lambda index: properties,
    )
    accelerator = types.SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: types.SimpleNamespace(type="xpu")
    )
    version = types.SimpleNamespace(cuda=None, hip="7.0.1")
    fake = types.SimpleNamespace(cuda=cuda, version=version, accelerator=accelerator)
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert detect_host() == Host(device_type="rocm", name="AMD Instinct MI300X", rocm_arch="gfx942")
    cuda.is_available = lambda: False
    assert detect_host() == Host(device_type="xpu")


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
    count = torch.cuda.device_count()
    assert detected(f"cuda:{count}") == (
        f"'cuda:{count}' needs a CUDA or ROCm device, found none to use: "
        f"its index needs {count + 1} devices, found {count}. Pass device='cpu', or mend that."
    )
