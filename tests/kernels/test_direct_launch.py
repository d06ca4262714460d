"""The direct launch of triton-gumbel: used where Triton's launcher is the one it was written for, elsewhere not."""

import logging

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw_triton_gumbel import launch
from tokendraw_triton_gumbel.launch import Launch

DEVICE = torch.device("cuda", 0)


class Known:
    """Triton's launcher up to 3.6; ``left`` is what a launch adds to the numbers that it is given."""

    def __init__(self, tensor, left):
        self.tensor, self.left = tensor, left

    def __call__(self, gridX, gridY, gridZ, stream, function, *args):  # noqa: N803
        *_, counts, _ = args
        self.tensor.copy_(torch.tensor(counts) + self.left)


class Later(Known):
    def __call__(
        self,
        gridX,  # noqa: N803
        gridY,  # noqa: N803
        gridZ,  # noqa: N803
        stream,
        function,
        kernel_metadata,
        launch_metadata,
        launch_enter_hook,
        launch_exit_hook,
        *args,
    ):
        super().__call__(gridX, gridY, gridZ, stream, function, *args)


class Other(Known):
    def __call__(self, grid, stream, *args):
        raise AssertionError("a launcher with other parameters is not called")


class Strict(Known):
    def __call__(self, gridX, gridY, gridZ, stream, function, *args):  # noqa: N803
        raise TypeError("function missing required argument")


@pytest.mark.parametrize(
    ("launcher", "left", "said"),
    [
        (Known, 2, None),
        (Later, 2, None),
        (Known, 3, "a launch left [6, 8, 19, 1048579, 10]"),
        (Other, 2, "its launcher takes self, grid, stream, args"),
        (Strict, 2, "function missing required argument"),
    ],
)
def test_launches_are_direct_only_where_the_launcher_is_known_and_a_launch_left_what_it_should(
    monkeypatch, caplog, launcher, left, said
):
    out = torch.zeros(5, dtype=torch.int64)

    class Driver:
        @staticmethod
        def get_current_stream(device):
            return 40 + device

    def compiled(kernel, constants, options, placeholders):
        made = Launch(kernel, constants, options)
        made._run, made._function, made._metadata = launcher(out, left), "the function", "its metadata"
        return made

    monkeypatch.setattr(launch, "_is_direct", {})
    monkeypatch.setattr(launch, "driver", type("Drivers", (), {"active": Driver}))
    monkeypatch.setattr(launch.torch, "zeros", lambda *args, **named: out)
    monkeypatch.setattr(launch.torch.cuda, "device", lambda index: torch.device("cpu"))
    monkeypatch.setattr(Launch, "compiled", compiled)
    with caplog.at_level(logging.WARNING, logger="tokendraw"):
        launch.check_direct_launch(DEVICE)
        launch.check_direct_launch(DEVICE)
    assert launch.current_stream(0) == (40 if said is None else None)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == (
        []
        if said is None
        else [f"triton-gumbel: this Triton is launched by its public interface, more slowly: {said}"]
    )
