"""The kit's properties of the operation ``scale`` of the tests."""

import torch

from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.subject import OperationSubject

properties = Properties("scale")


class Scaling(OperationSubject):
    operation = "scale"

    def scale(self, rows, factor):
        return self.built().scale(rows, factor)


@properties.required("scale products")
def products(subject, trial):
    """Every number is its old self times the factor."""
    rows = torch.from_numpy(trial.generator("rows").normal(size=(3, 5)))
    for factor in (0.0, 0.5, 3.0):
        found = subject.scale(rows.clone(), factor)
        trial.require(torch.equal(found, rows * factor), f"factor {factor} needs products, found others")
    return "3 factors"


@properties.required("scale inputs unmodified")
def inputs_unmodified(subject, trial):
    """The rows keep every bit."""
    rows = torch.ones(2, 3)
    subject.scale(rows, 2.0)
    trial.require(bool((rows == 1).all()), "rows need to stay as they are, found them changed")
    return "a factor of 2"


@properties.advertised(
    "scale sync-free", lambda c: c.sync_free, Refusal({"sync_free": True}), needs_cuda=True
)
def sync_free(subject, trial):
    """No call waits for the device."""
    raise AssertionError("there is no device here")


KIT = OperationKit(view=Scaling, properties=tuple(properties.all))
