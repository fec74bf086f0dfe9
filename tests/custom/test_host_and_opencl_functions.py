"""host_call, elementwise and opencl_function: what users bring along, untraced, traced and differentiated."""

import os
import re
import sys

import numpy as np
import pytest
import scipy.special

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.values import close, f64
from tracegrad.errors import ArgumentError, AutogradError, BuildError, DTypeError, ShapeError, TraceError, UnsupportedError
from tracegrad.support.plan import HostStep
from tracegrad.testing import gradcheck, gradgradcheck

pytestmark = pytest.mark.usefixtures("device")


# ------------------------------------------------------------------------------------------- numpy on values, without host_call


class NumpySin(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tg.tensor(np.sin(x.numpy()))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return tg.tensor(grad.numpy() * np.cos(x.numpy()))


def test_numpy_on_values_untraced():
    x = f64(0.3, 0.7)
    NumpySin.apply(x).sum().backward()
    close(x.grad, np.cos([0.3, 0.7]))


def test_numpy_on_values_inside_a_trace_names_host_call():
    traced = tg.trace(NumpySin.apply)
    with pytest.raises(TraceError, match=r"test_host_and_opencl_functions.py:\d+.*tg\.host_call"):
        traced(f64(0.3))
    with pytest.raises(TraceError, match=r"test_host_and_opencl_functions.py:\d+.*tg\.host_call"):
        tg.trace(lambda x: tg.tensor(np.sin(x)))(f64(0.3))


def test_a_value_saved_from_numpy_refuses_a_second_derivative():
    class Opaque(tg.Function):
        @staticmethod
        def forward(ctx, x):
            slope = tg.tensor(np.cos(x.numpy()))                                   # depends on x, but the graph cannot know
            ctx.save_for_backward(slope)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            (slope,) = ctx.saved_tensors
            return grad * slope

    x = f64(0.3)
    (g,) = tg.autograd.grad(Opaque.apply(x), x, create_graph=True)
    close(g, np.cos([0.3]))
    close(tg.jvp(Opaque.apply, (x.detach(),), (tg.ones_like(x),))[1], np.cos([0.3]))
    with pytest.raises(AutogradError, match="Opaque: its second derivative needs the derivative of a tensor that forward saved"):
        tg.autograd.grad(g, x)


# -------------------------------------------------------------------------------------------------------------- host_call


class Gamma(tg.Function):
    """The logarithm of the gamma function, from SciPy; its derivative is a host call, too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tg.host_call(scipy.special.gammaln, x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * PolyGamma.apply(x, 0)


class PolyGamma(tg.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x, n)
        return tg.host_call(lambda v: scipy.special.polygamma(n, v), x)

    @staticmethod
    def backward(ctx, grad):
        x, n = ctx.saved_tensors
        return grad * PolyGamma.apply(x, n + 1), None


def test_scipy_in_forward_and_backward_at_any_order(run):
    x = f64(0.5, 1.5, 4.0)
    fn = run(lambda x: Gamma.apply(x * 2.0) * x)
    v = x.detach().numpy()
    close(fn(x), scipy.special.gammaln(2 * v) * v)
    assert gradcheck(fn, x)
    assert gradgradcheck(fn, x)


def test_a_step_with_host_calls_is_one_plan():
    x = f64(0.5, 1.5)

    @tg.trace
    def step():
        x.grad = None
        (Gamma.apply(x * 2.0) + 1.0).sum().backward()
        return x.grad * 1.0

    for _ in range(3):
        close(step(), 2 * scipy.special.digamma(2 * x.detach().numpy()))
    if step.plan is not None:
        assert sum(isinstance(s, HostStep) for s in step.plan.steps) == 1          # the value itself is not used


def test_the_call_is_made_at_every_replay():
    calls = []

    def counted(v):
        calls.append(v.copy())
        return v + len(calls)

    fn = tg.trace(lambda x: tg.host_call(counted, x) * 2.0)
    x = f64(1.0, grad=False)
    assert [fn(x).item() for _ in range(3)] == [4.0, 6.0, 8.0]
    assert len(calls) == 3


def test_several_results_of_different_kinds(run):
    calls = []

    def sort(v):
        calls.append(1)
        return np.sort(v), np.argsort(v)

    def fn(x):
        values, order = tg.host_call(sort, x * 1.0, like=[x, ((3,), tg.int64)])
        return values + 1.0, order * 2

    x = f64(3.0, 1.0, 2.0, grad=False)
    for k in range(2):
        values, order = run(fn)(x)
        close(values, [2.0, 3.0, 4.0])
        np.testing.assert_array_equal(order.numpy(), [2, 4, 0])
        assert len(calls) == k + 1
    close(run(lambda x: tg.host_call(sort, x, like=[x, ((3,), tg.int64)])[0])(x), [1.0, 2.0, 3.0])


def test_like_describes_shape_and_dtype(run):
    x = tg.ones(2, 3)
    out = run(lambda x: tg.host_call(lambda v: v.sum(1).astype(np.float64), x, like=((2,), "float64")))(x)
    assert (out.shape, out.dtype) == ((2,), tg.float64)
    out = run(lambda: tg.host_call(lambda: np.arange(3), like=((3,), tg.int64)))()
    np.testing.assert_array_equal(out.numpy(), [0, 1, 2])


def test_results_that_are_not_like_it_are_errors(run):
    x = tg.ones(3)
    with pytest.raises(ShapeError, match=r"host_call\(sum\): result 0 has shape \(\), `like` says \(3,\)"):
        run(lambda x: tg.host_call(np.sum, x))(x).numpy()
    with pytest.raises(DTypeError, match=r"result 0 is float32, which does not become `like`'s int64"):
        run(lambda x: tg.host_call(np.negative, x, like=((3,), "int64")))(x).numpy()
    with pytest.raises(ShapeError, match="returned 1 results, `like` describes 2"):
        run(lambda x: tg.host_call(np.negative, x, like=[x, x]))(x)[0].numpy()
    with pytest.raises(ArgumentError, match="say what fn returns with like="):
        tg.host_call(lambda: 1)
    with pytest.raises(ArgumentError, match="`like` is a tensor, a pair"):
        tg.host_call(np.sum, x, like=3)
    with pytest.raises(DTypeError, match="argument 0 is a ndarray, expected a Tensor"):
        tg.host_call(np.sum, np.ones(3))


def test_a_host_call_has_no_derivative_of_its_own(run):
    with pytest.raises(AutogradError, match=r"host_call: tensor 0 requires grad .* wrap the call in a tg\.Function"):
        run(lambda x: tg.host_call(np.sin, x))(f64(1.0))
    assert not tg.host_call(np.sin, f64(1.0).detach()).requires_grad


def test_a_host_call_in_backward_serves_the_first_derivative_only(run):
    class Sin(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * tg.host_call(np.cos, x)

    x = f64(0.3, 1.1)
    assert gradcheck(run(Sin.apply), x)
    close(tg.grad(lambda x: run(Sin.apply)(x).sum())(x.detach()), np.cos([0.3, 1.1]))
    close(tg.jvp(run(Sin.apply), (x.detach(),), (tg.ones_like(x),))[1], np.cos([0.3, 1.1]))
    with pytest.raises(AutogradError, match=r"host_call\(cos\) inside a backward has no derivative; wrap it in a tg.Function of its own"):
        gradgradcheck(run(Sin.apply), x)


def test_a_saved_host_value_refuses_a_second_derivative(run):
    class Saves(tg.Function):
        @staticmethod
        def forward(ctx, x):
            slope = tg.host_call(np.cos, x)
            ctx.save_for_backward(slope)
            return tg.host_call(np.sin, x)

        @staticmethod
        def backward(ctx, grad):
            (slope,) = ctx.saved_tensors
            return grad * slope

    x = f64(0.3)
    assert gradcheck(run(Saves.apply), x)
    with pytest.raises(AutogradError, match="Saves: its second derivative needs the derivative of a tensor that forward saved"):
        gradgradcheck(run(Saves.apply), x)


def test_an_exception_in_the_function_reaches_the_caller(run):
    def fails(v):
        raise KeyError("from the user's function")

    with pytest.raises(KeyError, match="from the user's function"):
        run(lambda x: tg.host_call(fails, x))(tg.ones(2)).numpy()


# ------------------------------------------------------------------------------------------------------------ elementwise

leaky = tg.elementwise("(x > 0) ? x : a*x", derivatives={"x": tg.elementwise("(x > 0) ? 1 : a", derivatives={
    "x": 0, "a": tg.elementwise("(x > 0) ? 0 : 1", derivative=0, numpy=lambda x: np.where(x > 0, 0, 1.0) + 0 * x)},
    numpy=lambda x, a: np.where(x > 0, 1, a)), "a": tg.elementwise("(x > 0) ? 0 : x", derivatives={
        "x": tg.elementwise("(x > 0) ? 0 : 1", derivative=0, numpy=lambda x: np.where(x > 0, 0, 1.0) + 0 * x)},
        numpy=lambda x: np.where(x > 0, 0, x))},
    name="leaky", numpy=lambda x, a: np.where(x > 0, x, a * x))


def test_elementwise_derives_its_shape_rule(run):
    x, a = tg.tensor(np.array([[-1.0, 2.0, -3.0]])), tg.tensor(np.array([[0.5], [0.25]]))
    out = run(leaky)(x, a)
    close(out, [[-0.5, 2.0, -1.5], [-0.25, 2.0, -0.75]])
    assert out.dtype == tg.float64
    assert leaky(tg.tensor([1.0]), 0.1).dtype == tg.float32
    with pytest.raises(ShapeError, match=r"leaky: shapes \(1, 3\) and \(2,\) do not broadcast"):
        leaky(x, tg.ones(2, dtype=tg.float64))
    with pytest.raises(ArgumentError, match=r"leaky: takes 2 arguments \(x, a\), got 1"):
        leaky(x)


def test_elementwise_derivatives_at_any_order(run):
    x, a = f64(-1.0, 2.0, -3.0), f64(0.5)
    fn = run(lambda x, a: leaky(x.sin() * 2.0, a) * a)
    assert gradcheck(fn, (x, a))
    assert gradgradcheck(fn, (x, a))
    _, tangent = tg.jvp(fn, (x.detach(), a.detach()), (tg.ones_like(x), tg.zeros_like(a)))
    close(tangent, 2 * np.cos([-1.0, 2.0, -3.0]) * 0.5 * np.array([0.5, 1, 0.5]))


def test_elementwise_derivatives_as_expressions(device):
    if device.kind == "numpy":
        pytest.skip("an expression has no meaning for numpy")
    smooth = tg.elementwise("x / (1 + fabs(x))", derivative="1 / ((1 + fabs(x)) * (1 + fabs(x)))")
    by_result = tg.elementwise("exp(k * x)", args=("x", "k"), derivatives={"x": "k * y", "k": "x * y"})
    x, k = f64(-1.0, 0.5, 2.0), f64(0.3)
    assert gradcheck(smooth, x)
    assert gradcheck(by_result, (x, k))
    assert gradcheck(tg.trace(lambda x, k: by_result(smooth(x), k).sum(0)), (x, k))
    (g,) = tg.autograd.grad(smooth(x).sum(), x, create_graph=True)
    with pytest.raises(AutogradError, match="d_expression: no derivative with respect to 'x' was given"):
        g.sum().backward()


def test_elementwise_fuses(device):
    if device.kind == "numpy":
        pytest.skip("no kernels")
    square = tg.elementwise("x * x", derivative="2 * x", name="square")
    fn = tg.trace(lambda x: square(x + 1.0) * 3.0)
    close(fn(f64(1.0, 2.0)), [12.0, 27.0])
    assert len(fn.plan.launches) == 1
    assert "square" in [n.name for n in fn.graph]
    rows = tg.trace(lambda x: square(x.t()).sum(0))
    x = np.arange(64 * 48, dtype=np.float32).reshape(64, 48) / 1000
    close(rows(tg.tensor(x)), (x.T ** 2).sum(0), 1e-4)
    assert len(rows.plan.launches) == 1


def test_elementwise_vectors_and_masks(device):
    if device.kind == "numpy":
        pytest.skip("no kernels")
    positive = tg.elementwise("x > 0.5", result="bool")
    x = np.linspace(-1, 1, 333 * 40, dtype=np.float32).reshape(333, 40)
    out = tg.trace(lambda x: tg.where(positive(x), leaky(x, 0.1), 0.0).sum(1))(tg.tensor(x))
    close(out, np.where(x > 0.5, x, 0).sum(1), 1e-4)
    assert positive(tg.tensor(x)).dtype == tg.bool_


def test_elementwise_mistakes():
    with pytest.raises(ArgumentError, match="is not one C expression"):
        tg.elementwise("x = 1; x")
    with pytest.raises(ArgumentError, match="names no variable"):
        tg.elementwise("1.0f")
    with pytest.raises(ArgumentError, match="a derivative for 'z', but the variables are x"):
        tg.elementwise("x * x", derivatives={"z": "2"})
    with pytest.raises(ArgumentError, match="the derivative for 'x' uses b; it may use x, a and y"):
        tg.elementwise("x * a", derivatives={"x": "b"})
    plain = tg.elementwise("x * a", derivatives={"x": "a"}, numpy=lambda x, a: x * a)
    a = f64(1.0)
    with pytest.raises(AutogradError, match=r"expression: no derivative with respect to 'a' was given; pass derivatives={'a': ...}"):
        plain(f64(2.0, grad=False), a).backward()


def test_elementwise_without_numpy_on_the_numpy_device(device):
    bare = tg.elementwise("x * x")
    if device.kind == "numpy":
        with pytest.raises(UnsupportedError, match=r"runs on OpenCL devices only; give tg.elementwise a numpy= function"):
            bare(f64(2.0)).detach().numpy()
    else:
        close(bare(f64(2.0)), [4.0])


# -------------------------------------------------------------------------------------------------------- opencl_function

CUBE = """
__kernel void cube(__global const double *x, __global double *y) {
  int i = get_global_id(0);
  y[i] = x[i] * x[i] * x[i];
}
"""
CUBE_GRAD = """
__kernel void cube_grad(__global const double *g, __global const double *x, __global double *gx) {
  int i = get_global_id(0);
  gx[i] = g[i] * 3 * x[i] * x[i];
}
"""
cube_grad = tg.opencl_function(source=CUBE_GRAD, entry="cube_grad", backward=lambda gg, g, x: (gg * 3 * x * x, gg * g * 6 * x),
                               numpy=lambda g, x: g * 3 * x * x)
cube = tg.opencl_function(source=CUBE, entry="cube", backward=cube_grad, numpy=lambda x: x ** 3)
weigh = tg.opencl_function(
    entry="weigh", shape=lambda x, w: (x[0],), global_size=lambda x, w: x[0], local_size=4,
    source="""
    __kernel void weigh(__global const double *x, __global const double *w, __global double *y, double k, int rows, int cols) {
      int i = get_global_id(0);
      if (i >= rows) return;
      double sum = 0;
      for (int j = 0; j < cols; j++) sum += x[i * cols + j] * w[j];
      y[i] = k * sum;
    }""",
    backward=lambda g, x, w, k, rows, cols: (k * g.unsqueeze(1) * w.unsqueeze(0), k * (g.unsqueeze(1) * x).sum(0)),
    numpy=lambda x, w, k, rows, cols: k * (x @ w))


def test_a_kernel_with_a_kernel_as_its_backward(run):
    x = f64(1.0, -2.0, 3.0)
    fn = run(lambda x: cube(x * 2.0) + 1.0)
    close(fn(x), 8 * x.detach().numpy() ** 3 + 1)
    assert gradcheck(fn, x)
    assert gradgradcheck(fn, x)


def test_a_kernel_with_shape_rule_numbers_and_tensor_code_as_backward(run):
    rng = np.random.default_rng(0)
    x, w = tg.tensor(rng.standard_normal((6, 3)), requires_grad=True), tg.tensor(rng.standard_normal(3), requires_grad=True)
    fn = run(lambda x, w: weigh(x.sin(), w, 2.5, 6, 3).exp())
    close(fn(x, w), np.exp(2.5 * np.sin(x.detach().numpy()) @ w.detach().numpy()))
    assert gradcheck(fn, (x, w))
    assert gradgradcheck(fn, (x, w))


def test_a_traced_number_is_a_run_time_value():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 3)), rng.standard_normal(3)
    fn = tg.trace(lambda x, w, k: weigh(x, w, k, 6, 3))
    for k in (0.5, 2.0, -1.0):
        close(fn(tg.tensor(x), tg.tensor(w), k), k * (x @ w))
    assert len(fn.compilations) == 1
    if fn.plan is not None:
        assert [s.entry for s in fn.plan.launches] == ["weigh"]


def test_a_whole_step_with_users_kernels():
    x = f64(1.0, -2.0, 3.0)

    @tg.trace
    def step(lr):
        x.grad = None
        loss = cube(cube(x)).sum()
        loss.backward()
        with tg.no_grad():
            x.sub_(lr * x.grad)
        return loss

    value = x.detach().numpy()
    for _ in range(3):
        assert step(1e-6).item() == pytest.approx((value ** 9).sum())
        value = value - 1e-6 * 9 * value ** 8
        close(x, value)
    if step.plan is not None:
        assert [s.entry for s in step.plan.launches].count("cube") == 2
        assert str(step.kernels()).count("__kernel void cube(") == 1               # used twice, there once


def test_several_outputs_and_dtypes(run):
    split = tg.opencl_function(
        entry="split", shape=lambda x: [x, x], dtype=["int32", None],
        source="""__kernel void split(__global const double *x, __global int *whole, __global double *rest) {
                    int i = get_global_id(0);
                    whole[i] = (int)x[i];
                    rest[i] = x[i] - whole[i];
                  }""",
        backward=lambda g_whole, g_rest, x: g_rest, numpy=lambda x: (np.trunc(x), x - np.trunc(x)))
    x = f64(1.25, 2.5)
    whole, rest = run(split)(x)
    assert (whole.dtype, whole.requires_grad, rest.requires_grad) == (tg.int32, False, True)
    np.testing.assert_array_equal(whole.numpy(), [1, 2])
    close(rest, [0.25, 0.5])
    assert gradcheck(run(lambda x: split(x)[1] * 2.0), x)


def test_two_kernels_of_one_name(device):
    if device.kind == "numpy":
        pytest.skip("no kernels")
    text = "__kernel void same(__global const double *x, __global double *y) {{ int i = get_global_id(0); y[i] = {} * x[i]; }}"
    two, three = (tg.opencl_function(entry="same", source=text.format(k)) for k in (2, 3))
    close(tg.trace(lambda x: two(x) + three(x))(f64(1.0, 2.0, grad=False)), [5.0, 10.0])


def test_helpers_of_one_name(device):
    """Different functions, types, tables and macros of one name live side by side; what is equal stands in the program once."""
    if device.kind == "numpy":
        pytest.skip("no kernels")
    text = """
        // a comment in front
        #define SCALE {k}
        typedef struct {{ double first; double second; }} pair;      // {{ "a brace in a comment
        __constant double table[2] = {{ {k}.5, 2 }};
        static double twice(double x) {{ return x + x; }}
        double helper(double x);
        double helper(double x) {{ pair p = {{ x, table[0] }}; return p.first * p.second * SCALE; }}
        __attribute__((always_inline)) inline double scaled(double x) {{ return twice(x) * SCALE; }}
        __kernel void {entry}(__global const double *x, __global double *y) {{
            int i = get_global_id(0);
            y[i] = helper(x[i]) + scaled(x[i]);
        }}
        __kernel void {entry}_other(__global const double *x, __global double *y) {{ int i = get_global_id(0); y[i] = twice(x[i]); }}"""

    def made(k, entry, called=None):
        return tg.opencl_function(entry=called or entry, source=text.format(k=k, entry=entry))

    one, two, again, other = made(1, "one"), made(2, "two"), made(1, "one"), made(2, "two", "two_other")
    f = tg.trace(lambda x: one(x) + two(x) + again(x + 1.0) + other(x))
    x = np.array([1.0, 3.0])
    close(f(tg.tensor(x)), 3.5 * x + 9 * x + 3.5 * (x + 1) + 2 * x)
    source = str(f.kernels())
    assert source.count("double twice(double") == 1                            # equal, whoever defines it
    assert source.count("__kernel void one(") == 1
    assert len(set(re.findall(r"double (helper\w*)\(double x\) \{", source))) == 2
    assert source.count("#undef SCALE") == source.count("#define SCALE") == 2


def test_kernels_behind_macros(device):
    """What cannot be cut into definitions goes into the program as a whole, once."""
    if device.kind == "numpy":
        pytest.skip("no kernels")
    text = """#define GROUP(n) __attribute__((reqd_work_group_size(n, 1, 1)))
        GROUP(1) __kernel void {0}(__global const double *x, __global double *y) {{ int i = get_global_id(0); y[i] = {1} * x[i]; }}"""
    triple, tenfold = (tg.opencl_function(entry=e, source=text.format(e, k), local_size=1) for e, k in (("triple", 3), ("tenfold", 10)))
    close(tg.trace(lambda x: triple(x) + triple(x * 2.0) + tenfold(x))(f64(1.0, grad=False)), [19.0])


@one_of(2, "traced", [False, True])
def test_a_mistake_in_the_users_text(device, traced):
    """The message has the line of C, what it came from, the compiler's words and the way out; the exception has all of the log."""
    if device.kind == "numpy":
        pytest.skip("no kernels")
    expression = tg.elementwise("x * missing_a(x)", args=["x"], name="wrong")
    kernel = tg.opencl_function(entry="scale", source="""
        double helper(double v) { return v * missing_b; }
        __kernel void scale(__global const double *x, __global double *y) { y[get_global_id(0)] = helper(x[get_global_id(0)]); }""")
    for fn, line in ((expression, "_i * missing_a("), (kernel, "double helper(double v) { return v * missing_b; }")):
        here = sys._getframe().f_lineno + 2
        with pytest.raises(BuildError) as caught:
            (tg.trace(lambda x: fn(x) + 1.0) if traced else fn)(f64(1.0, 2.0, grad=False)).numpy()  # noqa: B023 - called at once
        error, missing = caught.value, "missing_a" if fn is expression else "missing_b"
        message = str(error)
        assert line in message
        assert f"{missing}'" in message.partition(line)[2]                 # what the compiler says of it
        assert "correct the text if it is yours" in message
        assert message.endswith(f"(at {__file__}:{here})")
        assert missing in error.log
        assert missing in error.source
        if fn is expression:
            assert f"(from {os.path.basename(__file__)}:{here}" in message


def test_kernel_mistakes(device):
    with pytest.raises(ArgumentError, match="opencl_function: the source has no kernel 'cubes'"):
        tg.opencl_function(source=CUBE, entry="cubes")
    with pytest.raises(ArgumentError, match=r"cube: takes tensors first, then numbers"):
        cube(3.0)
    bare = tg.opencl_function(source=CUBE, entry="cube", numpy=lambda x: x ** 3)
    x = f64(1.0)
    with pytest.raises(AutogradError, match=r"cube: no backward was given to tg\.opencl_function"):
        bare(x).backward()
    wrong = tg.opencl_function(source=CUBE, entry="cube", numpy=lambda x: x ** 3, backward=lambda g, x: (g, g))
    with pytest.raises(AutogradError, match="cube: backward returned 2 gradients for 1 tensors"):
        wrong(x).backward()
    broken = tg.opencl_function(source=CUBE.replace("x[i];", "z[i];"), entry="cube")
    error, message = (UnsupportedError, "numpy= function") if device.kind == "numpy" else (BuildError, "cube")
    with pytest.raises(error, match=message):
        broken(x).detach().numpy()
    failing = broken(x.detach())
    close(x * 2.0, [2.0])                                      # what failed does not stand in the way of others
    bad = tg.opencl_function(source=CUBE, entry="cube", numpy=lambda x: x ** 3, backward=lambda g, x: broken(g))
    with pytest.raises(error, match=message):
        bad(x).backward()
    with pytest.raises(error, match=message):
        failing.numpy()


def test_a_users_kernel_is_never_merged() -> None:
    """It may return early, or use the size of the launch."""
    source = """__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void twice(__global const float *x, __global float *y) {
  if (get_global_size(0) != 8) return;
  y[get_global_id(0)] = 2 * x[get_global_id(0)];
}
"""
    twice = tg.opencl_function(source=source, entry="twice", global_size=8, local_size=1, numpy=lambda x: 2 * x)
    x = tg.arange(8, dtype=tg.float32)
    np.testing.assert_array_equal((twice(x + 1.0).sum() + twice(x).sum()).numpy(), 4 * 28 + 16)


def test_a_users_operation_may_be_called_as_one_of_ours():
    """Passes know ours by their names: "neg" of "neg" is nothing, and exp of what is never positive takes a short cut."""
    triple = tg.elementwise("3 * x", args=["x"], name="neg", numpy=lambda x: 3 * x)
    mixed = tg.elementwise("x + 2 * y", args=["x", "y"], name="add", numpy=lambda x, y: x + 2 * y)
    square = tg.elementwise("x * x", args=["x"], name="exp", numpy=np.square)
    x = tg.linspace(-2, 3, 33)

    def sum(array):
        return array * 5

    def f(x):
        host = tg.host_call(sum, x, like=x)
        return triple(triple(x)), x + triple(x), mixed(x, tg.zeros(33)), square(x - x.amax()), host.sum()

    a = x.numpy()
    for found, expected in zip(tg.trace(f)(x), (9 * a, 4 * a, a, (a - a.max()) ** 2, 5 * a.sum()), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
