"""Rows that are written once: `Derived`, a function and what is derived of it, and `TrainingStep`, a loss and an update.

The same few lines run in tracegrad and in torch, whose names are the same: `t` is the package, `F` its nn.functional. JAX's are written
beside them. The reference is tracegrad's interpreter in float64: NumPy's arithmetic, operation by operation, no kernel and no fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.workloads.base import Arrays, Iteration, Workload

Function = Callable[..., Any]


class Derived(Workload):
    """`function`, and its gradients.

    wrt: the inputs to differentiate by; none for the value alone. An iteration returns (value, *gradients), or what `program` makes.
    """

    wrt: tuple[str, ...] = ()

    def function(self, t: Any, F: Any, *inputs: Any) -> Any:
        raise NotImplementedError

    jax_function: Function | None = None                     # the same over jax.numpy, of the inputs alone
    pytensor_function: Function | None = None                # the same over pytensor.tensor, which is given first; where PyTensor is run
    tinygrad_function: Function | None = None                # the same over tinygrad's tensors; where tinygrad is run
    value_wanted = True                                      # whether an iteration of those with gradients returns the value, too

    def program(self, grad: Function, value_and_grad: Function, f: Function, names: Sequence[str]) -> Function:
        """What an iteration computes, in functional transforms; returns a tuple."""
        if not self.wrt:
            return lambda *inputs: as_tuple(f(*inputs))
        both = value_and_grad(f, tuple(names.index(name) for name in self.wrt))

        def program(*inputs: Any) -> Any:
            value, gradients = both(*inputs)
            return value, *gradients

        return program

    def tracegrad(self, **inputs: Any) -> Iteration:
        import tracegrad as tg
        from tracegrad.nn import functional as F

        f = self.program(tg.grad, tg.value_and_grad, lambda *given: self.function(tg, F, *given), list(inputs))
        self.traced = tg.trace(f)
        return lambda: self.traced(*inputs.values())

    def torch(self, **inputs: Any) -> Iteration:
        import torch
        from torch.nn import functional as F

        wanted = [inputs[name].requires_grad_() for name in self.wrt]

        def run() -> Any:
            value = self.function(torch, F, *inputs.values())
            return (value, *torch.autograd.grad(value, wanted)) if wanted else as_tuple(value)

        return run

    def torch_compile(self, **inputs: Any) -> Iteration:
        import torch
        from torch.nn import functional as F

        def value_and_grad(f: Function, numbers: int | Sequence[int] = 0) -> Function:
            both = torch.func.grad_and_value(f, numbers if isinstance(numbers, int) else tuple(numbers))
            return lambda *given: both(*given)[::-1]

        f = self.program(torch.func.grad, value_and_grad, lambda *given: self.function(torch, F, *given), list(inputs))
        compiled = torch.compile(f)
        return lambda: compiled(*inputs.values())

    def jax(self, **inputs: Any) -> Iteration:
        import jax

        assert self.jax_function is not None
        compiled = jax.jit(self.program(jax.grad, jax.value_and_grad, self.jax_function, list(inputs)))
        return lambda: compiled(*inputs.values())

    @property
    def pytensor(self) -> Any:  # type: ignore[override]
        return None if self.pytensor_function is None else self._in_pytensor

    def _in_pytensor(self, **inputs: np.ndarray) -> Iteration:
        import pytensor
        import pytensor.tensor as pt

        symbols = {name: pt.tensor(dtype=a.dtype, shape=a.shape) for name, a in inputs.items()}
        assert self.pytensor_function is not None
        value = self.pytensor_function(pt, *symbols.values())
        gradients = pt.grad(value, [symbols[name] for name in self.wrt]) if self.wrt else []
        results = [*(as_tuple(value) if self.value_wanted else ()), *gradients]
        f = pytensor.function(list(symbols.values()), results, on_unused_input="ignore")
        return lambda: tuple(f(*inputs.values()))

    @property
    def tinygrad(self) -> Any:  # type: ignore[override]
        return None if self.tinygrad_function is None else self._in_tinygrad

    def _in_tinygrad(self, **inputs: Any) -> Iteration:
        from tinygrad import Tensor, TinyJit

        assert self.tinygrad_function is not None
        places = [list(inputs).index(name) for name in self.wrt]

        def program(*given: Any) -> Any:
            value = self.tinygrad_function(*given)
            gradients = value.gradient(*(given[k] for k in places)) if places else ()
            results = (*(as_tuple(value) if self.value_wanted else ()), *gradients)
            Tensor.realize(*results)
            return results

        compiled = TinyJit(program)
        return lambda: compiled(*inputs.values())

    def reference(self, **inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return by_interpreter(self, inputs)


class TrainingStep(Workload):
    """`loss` of the weights and the data, its gradient, and an update of the weights: a step of gradient descent, or of Adam."""

    weights: tuple[str, ...]
    rate: float
    adam = False
    checked = 3
    tolerance = 1e-4
    burst = 10
    wait = "burst"

    def loss(self, t: Any, F: Any, weights: Sequence[Any], *data: Any) -> Any:
        raise NotImplementedError

    jax_loss: Function | None = None
    tinygrad_loss: Function | None = None

    def _idiomatic(self, t: Any, F: Any, optim: Any, wrap: Function, inputs: dict[str, Any]) -> Iteration:
        """As one writes it: backward, and an update in place."""
        weights = [inputs.pop(name).requires_grad_() for name in self.weights]
        optimizer = optim.Adam(weights, lr=self.rate) if self.adam else optim.SGD(weights, lr=self.rate)

        def step(*data: Any) -> Any:
            loss = self.loss(t, F, weights, *data)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.traced = step = wrap(step)
        return lambda: (step(*inputs.values()), *weights)

    def tracegrad(self, **inputs: Any) -> Iteration:
        import tracegrad as tg
        from tracegrad import optim
        from tracegrad.nn import functional as F

        return self._idiomatic(tg, F, optim, tg.trace, inputs)

    def torch(self, **inputs: Any) -> Iteration:
        import torch
        from torch.nn import functional as F

        return self._idiomatic(torch, F, torch.optim, lambda step: step, inputs)

    def _functional(self, value_and_grad: Function, sqrt: Function, zeros: Function, wrap: Function, inputs: dict[str, Any]) -> Iteration:
        """As one writes it where a function has no effects: the new weights are results."""
        def step(state: Any, *data: Any) -> Any:
            weights, first, second, count = state
            loss, gradients = value_and_grad(weights, *data)
            if not self.adam:
                return loss, (tuple(w - self.rate * g for w, g in zip(weights, gradients, strict=True)), first, second, count)
            count = count + 1
            first = tuple(0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True))
            second = tuple(0.999 * v + 0.001 * g * g for v, g in zip(second, gradients, strict=True))
            scale, shrink = self.rate / (1 - 0.9**count), (1 - 0.999**count) ** 0.5
            weights = tuple(w - scale * m / (sqrt(v) / shrink + 1e-8) for w, m, v in zip(weights, first, second, strict=True))
            return loss, (weights, first, second, count)

        step = wrap(step)
        given = tuple(inputs.pop(name) for name in self.weights)
        moments = tuple(zeros(w) for w in given) if self.adam else ()
        state = (given, moments, tuple(zeros(w) for w in given) if self.adam else (), zeros(given[0].sum()))

        def run() -> Any:
            nonlocal state
            loss, state = step(state, *inputs.values())
            return loss, *state[0]

        return run

    def torch_compile(self, **inputs: Any) -> Iteration:
        import torch
        from torch.nn import functional as F

        both = torch.func.grad_and_value(lambda weights, *data: self.loss(torch, F, weights, *data))
        return self._functional(lambda *given: both(*given)[::-1], torch.sqrt, torch.zeros_like, torch.compile, inputs)

    def jax(self, **inputs: Any) -> Iteration:
        import jax

        assert self.jax_loss is not None
        both = jax.value_and_grad(self.jax_loss)
        return self._functional(both, jax.numpy.sqrt, jax.numpy.zeros_like, lambda f: jax.jit(f, donate_argnums=0), inputs)

    @property
    def tinygrad(self) -> Any:  # type: ignore[override]
        return None if self.tinygrad_loss is None else self._in_tinygrad

    def _in_tinygrad(self, **inputs: Any) -> Iteration:
        from tinygrad import Context, TinyJit
        from tinygrad.nn import optim

        assert self.tinygrad_loss is not None
        weights = [inputs.pop(name) for name in self.weights]
        optimizer = (optim.Adam if self.adam else optim.SGD)(weights, lr=self.rate)

        def step(*data: Any) -> Any:
            optimizer.zero_grad()
            loss = self.tinygrad_loss(weights, *data).backward()
            return loss.realize(*optimizer.schedule_step())

        compiled = TinyJit(step)

        def run() -> Any:
            with Context(TRAINING=1):
                return compiled(*inputs.values()), *weights

        return run

    def reference(self, **inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return by_interpreter(self, inputs)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def by_interpreter(workload: Workload, inputs: Arrays) -> tuple[np.ndarray, ...]:
    """The results after `checked` iterations on the device "numpy", in float64."""
    import tracegrad as tg

    previous = tg.device()
    tg.set_device("numpy")
    try:
        wide = {name: tg.tensor(a.astype(np.float64) if a.dtype.kind == "f" else a) for name, a in inputs.items()}
        run = type(workload).tracegrad(workload, **wide)
        for _ in range(workload.checked):
            results = run()
        return tuple(np.array(r.detach().numpy()) for r in results)
    finally:
        workload.traced = None
        tg.set_device(previous)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    return (scale * rng.standard_normal(shape, dtype=np.float32)).astype(dtype)


