"""Every module of torch's module database that is here, on torch's own samples: what it says of itself, values, gradients, buffers, errors.

`python -m tests.nn.beside_torch.module_db_torch NAME` prints what a module's samples differ in. EXCEPTIONS are the differences that stay,
with the reason.
"""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")
pytest.importorskip("expecttest", reason="torch's module database needs expecttest")

from tests.nn.beside_torch import module_db_torch  # noqa: E402  (imports torch)
from tests.ops.beside_torch import op_db_torch  # noqa: E402  (imports torch)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EXCEPTIONS = [  # (names, kinds of difference, words of it, why)
    (r"nn.FractionalMaxPool\dd", "repr|attribute", "", "torch's say nothing of themselves; sizes are as they were given"),
    (r"nn.FractionalMaxPool3d", "raises", r"of float\d\d\[4", "one input with the random numbers of a batch: torch takes the first"),
    (r"nn.LinearCrossEntropyLoss", "repr|attribute", "", "torch's `options` are of the order of its work"),
    (r"nn.TransformerEncoder(Layer)?", "attribute", "nested_tensor|mask_check|activation_relu_or_gelu", "of torch's fast path"),
    (r"nn.Embedding(Bag)?", "attribute", "sparse", "there are no sparse gradients"),
    (r"nn.CircularPad1d", "error", "4, 5", "the last dimension of more than 3 is padded, too"),
    (r"nn.NLLLoss", "error", "float16", "a weight of another dtype is promoted"),
]
ABSENT = r"nn.CrossMapLRN2d|ao\..*"


HERE = [info for info in module_db_torch.module_db if module_db_torch.module_class(info) is not None]


def test_every_module_of_the_database_is_here() -> None:
    absent = [info.name for info in module_db_torch.module_db if info not in HERE and not re.fullmatch(ABSENT, info.name)]
    assert not absent


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("info", HERE, ids=lambda info: info.name)
def test_samples(info) -> None:
    lines = [*module_db_torch.differences(info, (torch.float64,), most=6), *module_db_torch.differences(info, (torch.float32,), False, 3)]
    found = [f"[{kind}] {line}" for kind, line in lines if op_db_torch.unexplained(EXCEPTIONS, info.name, kind, line)]
    assert not found, "\n".join([f"{len(found)} differences:", *found[:10]])


KERNELS = ["nn.BatchNorm2d", "nn.Conv2d", "nn.CrossEntropyLoss", "nn.GRU", "nn.LayerNorm", "nn.MaxPool2d", "nn.TransformerEncoderLayer"]


@pytest.mark.parametrize("name", KERNELS)
def test_some_samples_by_kernels(name: str, kernels: None) -> None:
    for info in [info for info in HERE if info.name == name]:
        lines = module_db_torch.differences(info, (torch.float32,), most=1)
        found = [f"[{kind}] {line}" for kind, line in lines if op_db_torch.unexplained(EXCEPTIONS, info.name, kind, line)]
        assert not found, "\n".join([f"{len(found)} differences:", *found[:10]])
