"""The user's OpenCL C as differentiable operations: `opencl_function` (whole kernels) and `elementwise` (expressions)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracegrad.custom.custom_function import Function
from tracegrad.errors import ArgumentError, AutogradError, DTypeError, ShapeError, UnsupportedError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.operation_families import Elementwise, refuse_complex
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import bind, different_devices, own_name
from tracegrad.support import dtypes
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------ elementwise

_IDENTIFIER = r"(?<![\w.])(?:[A-Za-z_]|[^\0-\x7f])(?:\w|[^\0-\x7f])*"        # patterns are compiled when they are used, not before
_NOT_AN_ARGUMENT = (r"^(M_\w+|INFINITY|NAN|MAXFLOAT|HUGE_VALF?|FLT_\w+|DBL_\w+|INT_\w+|"
                    r"(u?(char|short|int|long)|half|float|double|bool|size_t|unsigned|signed)\d*)$")


class UserElementwise(Elementwise):
    """An expression of the user's. Not in REGISTRY: an instance per `tg.elementwise`."""

    lanewise = True                          # the code generator applies it lane by lane: any C expression will do

    def __init__(self, expression: str, args: Sequence[str], name: str, derivatives: Mapping[str, Any], numpy: Callable[..., Any] | None,
                 boolean: bool) -> None:
        self.expression, self.args, self.derivatives, self._numpy = expression, tuple(args), derivatives, numpy
        self.name, self.nin, self.result = own_name(name), len(args), "bool" if boolean else "same"  # type: ignore[misc]
        self.foldable = numpy is not None
        self.described = None if self.foldable else (expression, self.args, self.result)

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        if len(args) != self.nin or attrs:
            raise ArgumentError(f"{self.name}: takes {self.nin} arguments ({', '.join(self.args)}), got {len(args) + len(attrs)}")
        return super().__call__(*args)

    def opencl(self, *operands: str) -> str:
        given = dict(zip(self.args, operands, strict=True))
        return "(" + re.sub(_IDENTIFIER, lambda m: _atom(given[m[0]]) if m[0] in given else m[0], self.expression) + ")"

    def python(self, define: Any, operands: Sequence[str]) -> str:
        more = "".join([f", name={self.name!r}", ", result='bool'" * (self.result == "bool")])
        return f"{define(self.name, f'tg.elementwise({self.expression!r}, args={self.args}{more})')}({', '.join(operands)})"

    def numpy(self, *operands: Any) -> Any:
        if self._numpy is None:
            raise UnsupportedError(f"{self.name}: runs on OpenCL devices only; give tg.elementwise a numpy= function for the numpy device")
        return self._numpy(*operands)

    def vjp(self, ct: Node, y: Node, *operands: Any) -> tuple[Any, ...]:
        given = {**dict(zip(self.args, operands, strict=True)), "y": y}
        return tuple(self._share(ct, name, given) if o.needs_grad else None for name, o in zip(self.args, operands, strict=True))

    def _share(self, ct: Node, name: str, given: dict[str, Node]) -> Any:
        derivative = self.derivatives.get(name)
        if derivative is None:
            raise AutogradError(
                f"{self.name}: no derivative with respect to {name!r} was given; pass derivatives={{{name!r}: ...}} to tg.elementwise "
                "(an expression, a number, or another tg.elementwise, which has derivatives of its own)")
        return ct * (derivative(*(given[a] for a in derivative.args)) if isinstance(derivative, UserElementwise) else derivative)


def _atom(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"


@public(method=False)
def elementwise(expression: str, *, args: Sequence[str] | None = None, derivative: Any = None, derivatives: Mapping[str, Any] | None = None,
                name: str = "expression", numpy: Callable[..., Any] | None = None, result: str = "same") -> UserElementwise:
    """A differentiable operation from an OpenCL C expression of scalars, applied to broadcast tensors; it fuses like any other.

    args: the expression's variables, in the order of the call (default: in the order they appear). derivatives: by variable, what to
    multiply the cotangent with: an expression in the variables and `y`, the result; a number; or another tg.elementwise, whose own
    derivatives serve the next order. derivative: the same for the first variable. A derivative given as a string has none itself.
    numpy: the meaning on numpy arrays, for the numpy device. result: "same" dtype as the operands, or "bool".
    Raises ArgumentError for what cannot be such an expression, AutogradError when a derivative is asked for that was not given.

    >>> leaky = tg.elementwise("(x > 0) ? x : a*x", derivatives={"x": "(x > 0) ? 1 : a", "a": "(x > 0) ? 0 : x"})
    >>> leaky(tg.tensor([-1.0, 2.0]), 0.1)
    """
    expression = _one_expression(expression)
    found = list(map(_normal, args)) if args is not None else _variables(expression)
    if not found:
        raise ArgumentError(f"elementwise: {expression!r} names no variable")
    if wrong := [arg for arg in found if not arg.isidentifier()]:
        raise ArgumentError(f"elementwise: {wrong[0]!r} cannot be the name of a variable; use letters, digits and underscores")
    if result not in ("same", "bool"):
        raise ArgumentError(f"elementwise: result is 'same' or 'bool', got {result!r}")
    given = {_normal(variable): d for variable, d in (derivatives or {}).items()}
    if derivative is not None:
        given.setdefault(found[0], derivative)
    made: dict[str, Any] = {}
    for variable, d in given.items():
        if variable not in found:
            raise ArgumentError(f"elementwise: a derivative for {variable!r}, but the variables are {', '.join(found)}")
        if isinstance(d, str):
            d = _one_expression(d)
            names = _variables(d, (*found, "y"))
            d = UserElementwise(d, names, f"d_{name}", {}, None, False) if names else _number(d)
        if isinstance(d, UserElementwise) and (unknown := set(d.args) - {*found, "y"}):
            raise ArgumentError(f"elementwise: the derivative for {variable!r} uses {', '.join(sorted(unknown))}; "
                                f"it may use {', '.join(found)} and y")
        made[variable] = d
    return UserElementwise(expression, found, name, made, numpy, result == "bool")


def _normal(text: str) -> str:
    """Names in the text are what Python makes of them: `µ`, which is typed, is not the letter mu, which `dict(µ=...)` has."""
    return unicodedata.normalize("NFKC", text)


def _one_expression(text: str) -> str:
    """The C expression, its comments taken out, on one line. Raises ArgumentError for text that would not stay within its parentheses."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/|\s+", " ", _normal(text), flags=re.DOTALL).strip()
    if not plain or not plain.isprintable() or any(sign in plain for sign in (";", "{", "\\", "#", "??", "/*")):
        raise ArgumentError(f"elementwise: {text!r} is not one C expression; for statements write a kernel (tg.opencl_function)")
    depth = 0
    for c in plain:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            break
    if depth:
        raise ArgumentError(f"elementwise: the parentheses of {text!r} do not match; write one C expression")
    return plain


def _number(text: str) -> float:
    try:
        return float(text.rstrip("fF"))
    except ValueError:
        raise ArgumentError(f"elementwise: the derivative {text!r} names no variable and is no number") from None


def _variables(expression: str, given: Sequence[str] = ()) -> list[str]:
    """The identifiers that are neither called, nor types, nor constants of OpenCL C, unless they are among the given ones."""
    names = [m[0] for m in re.finditer(_IDENTIFIER, expression) if not expression[m.end():].lstrip().startswith("(")]
    return list(dict.fromkeys(n for n in names if n in given or not re.match(_NOT_AN_ARGUMENT, n)))


# ---------------------------------------------------------------------------------------------------------------- kernels


class UserKernel(Shared):
    """A kernel of the user's: source and entry. Not in REGISTRY: an instance per `tg.opencl_function`."""

    family = "opencl_call"

    def __init__(self, source: str, entry: str, numpy: Callable[..., Any] | None) -> None:
        super().__init__()
        self.source, self.entry, self._numpy = source, entry, numpy
        self.described = source, entry
        self.name = own_name(entry)  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(attrs["outputs"])

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        outputs, runtime = attrs["outputs"], iter(operands[attrs["inputs"]:])
        shapes, kinds = [a.shape for a in outputs], [str(a.dtype) for a in outputs]
        made = {"shape": shapes if len(outputs) > 1 else shapes[0], "dtype": kinds if len(outputs) > 1 else kinds[0],
                "global_size": attrs["global_size"], "local_size": attrs["local_size"]}
        options = "".join(f", {k}={v!r}" for k, v in made.items() if v is not None)
        text = self.source.strip("\n").replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        name = define(self.entry, f'tg.opencl_function(entry="{self.entry}"{options}, source="""\n{text}\n""")')
        numbers = [next(runtime) if value is None else f"{value!r}" for value, _ in attrs["scalars"]]
        return f"{name}({', '.join([*operands[:attrs['inputs']], *numbers])})"

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        if self._numpy is None:
            raise UnsupportedError(f"{self.entry}: runs on OpenCL devices only; give tg.opencl_function a numpy= function for the numpy "
                                   "device")
        count, runtime = attrs["inputs"], iter(arrays[attrs["inputs"]:])
        raw = self._numpy(*arrays[:count], *(next(runtime) if value is None else value for value, _ in attrs["scalars"]))
        given = list(raw) if isinstance(raw, (tuple, list)) else [raw]
        return [np.asarray(g, a.dtype).reshape(a.shape) for g, a in zip(given, attrs["outputs"], strict=True)]


class OpenCLFunction:
    """What `opencl_function` returns: call it with tensors, then numbers."""

    def __init__(self, kernel: UserKernel, shape: Any, dtype: Any, global_size: Any, local_size: Any,
                 backward: Callable[..., Any] | None) -> None:
        self.kernel, self.shape, self.dtype, self.global_size, self.local_size = kernel, shape, dtype, global_size, local_size
        made = {"forward": staticmethod(self._forward), "backward": staticmethod(self._backward), "__doc__": kernel.source}
        self.function = type(kernel.entry, (Function,), made)
        self.backward = backward

    def __repr__(self) -> str:
        return f"<opencl_function {self.kernel.entry}>"

    def __call__(self, *args: Any) -> Any:
        return self.function.apply(*args)  # type: ignore[attr-defined]

    def _forward(self, ctx: Any, *args: Any) -> Any:
        entry = self.kernel.entry
        weak = [isinstance(a, Tensor) and a._node().aval.weak for a in args]
        count = next((i for i, a in enumerate(args) if not isinstance(a, Tensor) or weak[i]), len(args))
        tensors, numbers = args[:count], args[count:]
        if not tensors:
            raise ArgumentError(f"{entry}: takes tensors first, then numbers; got {[type(a).__name__ for a in args]}")
        for t in tensors:
            if t.device is not tensors[0].device:
                raise different_devices(entry, tensors[0], t)
        operands = [t._node() for t in tensors]
        scalars = []
        for a, is_weak in zip(numbers, weak[count:], strict=True):
            if is_weak:
                operands.append(a._node())
            scalars.append((None if is_weak else _plain(a), _scalar_dtype(entry, a, operands[0].dtype)))
        shapes = [t.shape for t in tensors]
        outputs = self._outputs(shapes, operands[0].dtype)
        sizes = _sizes(entry, "global_size", self.global_size, shapes) or (max(1, outputs[0].size),)
        local = _sizes(entry, "local_size", self.local_size, shapes)
        if local is not None:
            if len(local) != len(sizes):
                raise ArgumentError(f"{entry}: global_size {sizes} and local_size {local} have different numbers of dimensions")
            sizes = tuple(-(-g // n) * n for g, n in zip(sizes, local, strict=True))
        attrs = {"inputs": count, "outputs": outputs, "scalars": tuple(scalars), "global_size": sizes, "local_size": local}
        refuse_complex(self.kernel.name, *tensors)
        nodes = [bind(self.kernel, tuple(operands), {**attrs, "index": k}) for k in range(len(outputs))]
        results = [Tensor(n, tensors[0].device, state.trace) for n in nodes]
        ctx.save_for_backward(tensors=tensors, numbers=numbers)
        return results[0] if len(results) == 1 else tuple(results)

    def _outputs(self, shapes: list[tuple[int, ...]], default: Any) -> tuple[Aval, ...]:
        found = self.shape(*shapes) if callable(self.shape) else shapes[0] if self.shape is None else self.shape
        several = isinstance(found, list)
        dtype = self.dtype if isinstance(self.dtype, list) else [self.dtype] * (len(found) if several else 1)
        all_shapes = found if several else [found]
        if len(dtype) != len(all_shapes):
            raise ArgumentError(f"{self.kernel.entry}: {len(all_shapes)} output shapes but {len(dtype)} dtypes")
        for s in all_shapes:
            if not isinstance(s, (tuple, list)) or not all(isinstance(n, int) and n >= 0 for n in s):
                raise ShapeError(f"{self.kernel.entry}: shape gave {s!r}; expected a tuple of sizes, or a list of such for several outputs")
        return tuple(Aval(tuple(s), default if d is None else dtypes.as_dtype(d)) for s, d in zip(all_shapes, dtype, strict=True))

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        if self.backward is None:
            raise AutogradError(f"{self.kernel.entry}: no backward was given to tg.opencl_function, so it cannot be differentiated")
        tensors = ctx.saved_variables.tensors
        found = self.backward(*grads, *tensors, *ctx.saved_variables.numbers)
        given = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(given) != len(tensors):
            raise AutogradError(f"{self.kernel.entry}: backward returned {len(given)} gradients for {len(tensors)} tensors; None where "
                                "there is none")
        return (*given, *[None] * (len(ctx.needs_input_grad) - len(given)))


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


def _scalar_dtype(entry: str, number: Any, first: Any) -> Any:
    """A float goes as the first tensor's float dtype (else float), an int as int, a numpy scalar as what it is."""
    if isinstance(number, np.generic):
        return dtypes.as_dtype(number.dtype)
    if isinstance(number, (Tensor, float)):
        return first if dtypes.is_float(first) else dtypes.float32
    if isinstance(number, (bool, int)):
        return dtypes.int32
    raise DTypeError(f"{entry}: an argument is a {type(number).__name__}; a kernel takes tensors first, then numbers")


def _sizes(entry: str, what: str, given: Any, shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    found = given(*shapes) if callable(given) else given
    if found is None:
        return None
    found = (found,) if isinstance(found, int) else tuple(found)
    if not 1 <= len(found) <= 3 or not all(isinstance(n, int) and n > 0 for n in found):
        raise ArgumentError(f"{entry}: {what} is one to three positive ints, got {found}")
    return found


@public(method=False)
def opencl_function(*, source: str, entry: str, shape: Any = None, dtype: Any = None, global_size: Any = None, local_size: Any = None,
                    backward: Callable[..., Any] | None = None, numpy: Callable[..., Any] | None = None) -> OpenCLFunction:
    """A differentiable operation from a kernel in OpenCL C. Its parameters: the input buffers, the output buffers, then numbers.

    shape: the output's sizes, or a function of the input shapes that gives them; a list for several outputs (default: the first
    input's). dtype: of the output, or a list (default: the first input's). global_size, local_size: work-items, ints or tuples or
    functions of the input shapes (default: one work-item per output element; a global size is rounded up to the local one, so test
    get_global_id against the size). Call it with the tensors, then the numbers: floats go as the first tensor's float dtype, ints as
    int, numpy scalars as what they are. Inputs are contiguous and must not be written.
    backward(*output gradients, *inputs, *numbers) gives a gradient for each input (None where there is none): tensor code or an
    opencl_function; what it is differentiates further. numpy: the meaning on arrays, for the numpy device.
    Raises BuildError for a source that the driver rejects, AutogradError where backward is missing or wrong.

    >>> scale = tg.opencl_function(entry="scale", backward=lambda g, x, k: g * k, source='''
    ...     __kernel void scale(__global const float *x, __global float *y, float k) { int i = get_global_id(0); y[i] = k * x[i]; }''')
    >>> scale(tg.ones(4), 3.0)
    """
    if "\0" in source or (not source.isascii() and any("\ud800" <= c <= "\udfff" for c in source)):
        raise ArgumentError("opencl_function: the source holds a NUL or a surrogate, which no driver can be given; read its file as UTF-8")
    if not re.search(rf"\b{re.escape(entry)}\s*\(", source):
        raise ArgumentError(f"opencl_function: the source has no kernel {entry!r}")
    return OpenCLFunction(UserKernel(source, entry, numpy), shape, dtype, global_size, local_size, backward)
