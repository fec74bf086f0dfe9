"""Every operation of torch's operator database that is here, on torch's own samples: values, dtypes, gradients, updates in place, errors.

`python -m tests.ops.beside_torch.op_db_torch NAME` prints what an operation's samples differ in. EXCEPTIONS are the differences that stay,
with the reason (docs/differences.md has those that users meet).
"""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")
pytest.importorskip("expecttest", reason="torch's operator database needs expecttest")

from tests.ops.beside_torch import op_db_torch  # noqa: E402  (imports torch)
from tests.public import coverage  # noqa: E402  (imports torch)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUMBERS = "a number is taken where torch wants a tensor"
TIES = "which of equal elements comes first is not defined in torch"
EMPTY = "an empty input is refused by torch; here its result is empty, too"
OUT = "values are computed before they are written: `out` may be an input, or overlap another one"
OUT_DTYPE = "`out` may have any dtype that the result can be cast to, as torch's elementwise functions have it"
EXCEPTIONS = [  # (names, kinds of difference, words of it, why)
    (r".*", "error", r"(^|, |\()(2, 3|2, int64\[3\]=\[1, 2, 3\]|int64\[3\]=\[1, 2, 3\], 2): no error", NUMBERS),
    (r".*", "error", r"out=.*no error \(.(unsupported operation|.*single memory location|.*must not overlap)", OUT),
    (r"complex|aminmax|amax|amin|gather|multinomial", "error",
     r"out=.*no error \(.*(Expected out tensor|Expected object|Expected the dtype for input and out|expects Long tensor out)", OUT_DTYPE),
    (r"arange", "error", "no error", "a range whose end comes first is empty, as in numpy"),
    (r"add(mv|bmm|r)|baddbmm", "value|in place", "int64, not bool|float32, not int64",
     "factors that are no integers make a float of integers, where torch cuts them off"),
    (r"as_strided.*", "value|raises|in place|gradient", "", "as_strided is of the elements row by row, not of a storage"),
    (r"cholesky_(inverse|solve)", "gradient", "", "torch's gradient of the triangle that is not read is not 0"),
    (r"cov", "error", "cannot be negative", "the weights are not looked at"),
    (r"cov", "value|gradient", "aweights=float32", "computed in the input's dtype; torch rounds the weights' sum to float32"),
    (r"nn.functional.conv3d", "error", "should be the same", "convolutions promote operands of different dtypes"),
    (r"nn.functional.(group_norm|max_pool\dd|max_pool1d|max_pool3d)", "error", "no error", EMPTY),
    (r"nn.functional.local_response_norm", "value", "float32, not int64", "integers become floats, also where there are none"),
    (r"nn.functional.max_unpool\dd", "gradient", "", "of equal indices the last one wins, and only it gets a gradient"),
    (r"nn.functional.batch_norm", "raises", r"float\d\d\[0\]", "an input without channels"),
    (r"nn.functional.ctc_loss", "gradient", "", "torch's gradient is right for normalized log_probs only"),
    (r"(arg)?sort|msort|kthvalue|topk|mode", "value", "", TIES),
    (r"logcumsumexp", "raises", "complex128", "its imaginary parts in torch depend on the order of the sums, by multiples of 2 pi"),
    (r"(linalg.)?cholesky(_ex)?", "gradient", "complex128", "ours is the Hermitian part of torch's: A is taken to be Hermitian"),
    (r"istft", "gradient", r"window=.*\[8\]", "torch gives none for a window that is a part of a leaf, cut off where nothing is recorded"),
    (r"signal.windows.*", "error", "float16", "float16 is a float"),
    (r"special.bessel_(j0|y1)", "value", "", "torch is off by 1e-7; ours is as scipy's (tests/public/test_torch_names.py)"),
    (r"masked.arg(max|min)", "value", "int64, not", "places are integers, whatever the input's dtype"),
    (r"masked.logsumexp", "value", "not int64", "a logarithm is a float"),
    (r"nn.functional.linear_cross_entropy", "raises", "options", "torch's order of the work"),
    (r"special.polygamma|polygamma|.*polynomial.*", "error", "", "the errors of two numbers, see above"),
]


HERE = [op for op in op_db_torch.op_db if op_db_torch.function(op.name) is not None]


def test_every_name_of_the_database_is_here_or_excluded_with_a_reason() -> None:
    """Of the torch that is installed; tests/public/op_db.txt holds the names of 2.15, for where it is not."""
    names = {op.name for op in op_db_torch.op_db}
    absent = [n for n in names if not coverage.present(n) and not any(re.match(pattern, n) for pattern, _ in coverage.REASONS)]
    assert not absent, f"neither here nor in REASONS of tests/public/coverage.py: {sorted(absent)}"
    if torch.__version__.startswith("2.15."):
        assert names == set(coverage.NAMES)


def test_every_sample_list_is_compared() -> None:
    """What `differences` has no function for is in that list, or (jiterator) has tests of its own: nothing is left out in silence."""
    left = {op.name for op in op_db_torch.op_db} - {op.name for op in HERE}
    unknown = [n for n in left if coverage.present(n) and not n.startswith("jiterator")]
    assert not unknown, sorted(unknown)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("op", HERE, ids=lambda op: f"{op.name}.{op.variant_test_name}".rstrip("."))
def test_samples(op) -> None:
    found = [f"[{kind}] {line}" for kind, line in op_db_torch.differences(op) if op_db_torch.unexplained(EXCEPTIONS, op.name, kind, line)]
    assert not found, "\n".join([f"{len(found)} differences:", *found[:10]])


# Of bfloat16, beside those: torch computes these in 16 bits, in steps, or takes it where we say that we do not.
EXCEPTIONS_16 = [
    (r"nextafter|matrix_exp", "raises", "cast first", "takes no floats of 16 bits"),
    (r"msort", "gradient", "", TIES),
    (r"logcumsumexp", "gradient", "", "torch's running sum stays behind in 16 bits"),
    (r"(nn.functional.)?grid_sample(r_[23]d)?", "value|gradient", "", "torch's places are rounded to 16 bits"),
    (r"nn.functional.(hinge_embedding_loss|scaled_dot_product_attention)", "value", "", "torch rounds between the steps"),
    (r"div", "value", "trunc", "torch rounds the quotient before it cuts it off"),
    (r"histc", "value", "", "torch rounds places to 16 bits"),
]


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("op", [op for op in HERE if torch.bfloat16 in op.supported_dtypes("cpu")],
                         ids=lambda op: f"{op.name}.{op.variant_test_name}".rstrip("."))
def test_samples_of_bfloat16(op) -> None:
    lines = op_db_torch.differences(op, (torch.bfloat16,), most=5, errors=False)
    known = [*EXCEPTIONS, *EXCEPTIONS_16]
    found = [f"[{kind}] {line}" for kind, line in lines if op_db_torch.unexplained(known, op.name, kind, line)]
    assert not found, "\n".join([f"{len(found)} differences:", *found[:10]])


# One or two of each kind of kernels: all samples on a device would be an hour of compiling.
KERNELS = [
    "addcdiv", "atan2", "remainder", "special.zeta", "var", "cumsum", "logcumsumexp", "sort", "topk", "kthvalue", "gather",
    "scatter_add", "index_put", "take_along_dim", "roll", "nan_to_num", "cat", "matmul", "baddbmm", "einsum", "cdist", "linalg.solve",
    "linalg.cholesky", "fft.rfft", "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d",
    "nn.functional.interpolate", "nn.functional.grid_sample", "nn.functional.layer_norm", "nn.functional.cross_entropy",
    "nn.functional.embedding", "nn.functional.scaled_dot_product_attention", "masked.mean",
]


@pytest.mark.parametrize("name", KERNELS)
def test_some_samples_by_kernels(name: str, kernels: None) -> None:
    """On the default device: values, gradients and updates in place of two samples of float32 and of int64."""
    for op in [op for op in HERE if op.name == name][:2]:
        lines = op_db_torch.differences(op, (torch.float32, torch.int64), most=2, errors=False)
        found = [f"[{kind}] {line}" for kind, line in lines if op_db_torch.unexplained(EXCEPTIONS, op.name, kind, line)]
        assert not found, "\n".join([f"{len(found)} differences:", *found[:10]])


def test_those_names_are_of_the_database() -> None:
    assert set(KERNELS) <= {op.name for op in HERE}
