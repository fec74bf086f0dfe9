"""Mixed precision with torch's names: `autocast` casts operands to 16 bits where torch does, `GradScaler` keeps gradients from vanishing.

Start at `autocast`. What it makes of a call is asked for where all functions of tensors are entered (`ops.arguments.on_nodes`), so it holds
for layers, for functions and methods, and in traces.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tracegrad.errors import ArgumentError, warn
from tracegrad.execute.devices import aliases
from tracegrad.graph.operators import Named
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# torch's lists, by the names of functions: what is computed in 16 bits, and what in float32.
_LOWER = _names("""
matmul mm bmm addmm baddbmm addbmm linear vecdot multi_dot einsum tensordot prelu scaled_dot_product_attention chain_matmul matrix_power
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc rnn lstm gru
""")
_FLOAT32 = _names("""
prod mse_loss l1_loss cross_entropy nll_loss binary_cross_entropy_with_logits kl_div huber_loss smooth_l1_loss cdist trace inv inverse
quantile nanquantile avg_pool3d grid_sample poisson_nll_loss cosine_embedding_loss margin_ranking_loss hinge_embedding_loss
triplet_margin_loss soft_margin_loss multi_margin_loss multilabel_margin_loss ctc_loss fft ifft rfft irfft fft2 ifft2 fftn ifftn rfft2
rfftn irfft2 irfftn hfft ihfft svd svdvals cholesky qr eigh eigvalsh eig eigvals det slogdet logdet solve lstsq pinv matrix_rank cond
polar stft view_as_complex cholesky_inverse cholesky_solve geqrf orgqr ormqr solve_ex cholesky_ex inv_ex tensorinv tensorsolve lu_solve
""")
_DEFAULTS = {"cpu": dtypes.bfloat16}


@dataclass(frozen=True)
class _Casts:
    """How the operands of calls are cast: to `dtype`, on the devices of a kind."""

    kind: str
    dtype: Any

    def cast(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of the function `name`, floats of 32 and 16 bits cast as torch casts them. (Not nodes, inside of one.)"""
        wanted = self.dtype if name in _LOWER else dtypes.float32 if name in _FLOAT32 else None
        if wanted is None:
            return args, kwargs
        return [self._cast(a, wanted) for a in args], {k: self._cast(v, wanted) for k, v in kwargs.items()}

    def _cast(self, x: Any, wanted: Any) -> Any:
        if isinstance(x, Tensor):
            own = x.dtype == dtypes.float32 or dtypes.is_half(x.dtype)
            return x.to(dtype=wanted) if own and x.dtype != wanted and _is_kind(x.device, self.kind) else x
        return type(x)([self._cast(y, wanted) for y in x]) if type(x) in (list, tuple) else x


@memoize(64)
def _casts(kind: str, dtype: Any) -> _Casts:
    return _Casts(kind, dtype)


def _is_kind(device: Any, kind: str) -> bool:
    return aliases.get(kind) is device or device.type == kind


class autocast:
    """Context manager and decorator: products, convolutions and attention are computed in `dtype`, losses and inverses in float32.

    device_type: of the tensors that it is for, "cpu", or what `x.device.type` is; "cuda" changes nothing where there is none, and says so
    in a warning, as torch does. dtype: bfloat16 (the default on the CPU) or float16 (elsewhere); any other changes nothing, with a warning.
    Weights stay what they are, and get gradients of their own dtype; leave the block before `backward()`.
    Raises ArgumentError for a device_type that is no string, DTypeError for what is no dtype.

    >>> with tg.autocast("cpu"):
    ...     (tg.ones(2, 2) @ tg.ones(2, 2)).dtype
    dtype(bfloat16)
    """

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        if not isinstance(device_type, str):
            raise ArgumentError(f"autocast: device_type is a string, got {type(device_type).__name__}; give x.device.type")
        del cache_enabled
        self.device = kind = device_type.partition(":")[0]
        self.fast_dtype = dtype = _DEFAULTS.get(kind, dtypes.float16) if dtype is None else dtype
        self._enabled, self._before = enabled, list[Any]()
        if enabled and kind == "cuda" and kind not in aliases:
            self._enabled = _says("autocast is switched off: there is no CUDA here (tg.cuda.is_available() is False)")
        elif enabled and not dtypes.is_half(dtypes.as_dtype(dtype)):
            self._enabled = _says(f"autocast is switched off: it casts to bfloat16 and float16, not to {dtype}")

    def __enter__(self) -> autocast:
        self._before.append(state.autocast)
        now = state.autocast
        state.autocast = _casts(self.device, dtypes.as_dtype(self.fast_dtype)) if self._enabled else (
            None if now is not None and now.kind == self.device else now)
        return self

    def __exit__(self, *exc: object) -> None:
        state.autocast = self._before.pop()

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return wrapped


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether an `autocast` for these devices is around."""
    return state.autocast is not None and state.autocast.kind == device_type


def get_autocast_dtype(device_type: str) -> Any:
    """What an `autocast` for these devices casts to, or would."""
    return state.autocast.dtype if is_autocast_enabled(device_type) else _DEFAULTS.get(device_type, dtypes.float16)


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: Any = None) -> Any:
    """Decorator of a Function's forward: inside of an `autocast`, it runs without, on arguments cast to cast_inputs, if that is given."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if cast_inputs is None or not is_autocast_enabled(device_type):
            return fwd(*args, **kwargs)
        casts = _Casts(device_type, cast_inputs)
        with autocast(device_type, enabled=False):
            return fwd(*(casts._cast(a, cast_inputs) for a in args), **{k: casts._cast(v, cast_inputs) for k, v in kwargs.items()})

    return wrapped


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """Decorator of a Function's backward: it runs as it is."""
    return bwd if bwd is not None else lambda fn: fn


class GradScaler(Named):
    """Scales losses, so that gradients of 16 bits do not vanish, and lets no step be taken where they overflowed.

    `scale(loss).backward()`, then `step(optimizer)` and `update()`. device: "cuda" switches it off where there is none, and says so.
    Losses are float tensors. Raises ArgumentError unless growth_factor is above 1 and backoff_factor from 0 to 1.

    >>> scaler = tg.amp.GradScaler("cpu", init_scale=4.0)
    >>> scaler.scale(tg.tensor(2.0))
    Tensor(8., device='cpu')
    """

    # A traced function that scales losses is recorded anew where the scale is another one.
    _trace_reads: ClassVar[dict[str, Any]] = dict.fromkeys(("scale", "unscale_", "step", "get_scale"), operator.attrgetter("_scale"))

    def __init__(self, device: str = "cuda", init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True) -> None:
        if growth_factor <= 1.0 or not 0.0 < backoff_factor < 1.0:
            raise ArgumentError("GradScaler: growth_factor is above 1 and backoff_factor from 0 to 1, "
                                f"got {growth_factor} and {backoff_factor}")
        kind = str(device).partition(":")[0]
        if enabled and kind == "cuda" and kind not in aliases:
            enabled = _says("GradScaler is switched off: there is no CUDA here (tg.cuda.is_available() is False)")
        self._enabled, self._scale, self._good_steps = enabled, float(init_scale), 0
        self._growth_factor, self._backoff_factor, self._growth_interval = growth_factor, backoff_factor, growth_interval
        self._overflowed: dict[int, bool] = {}              # by the optimizer's identity: those whose gradients have no scale any more
        self._stepped: set[int] = set()                     # and those that stepped, since the last `update`

    def scale(self, outputs: Any) -> Any:
        """The loss, or losses, times the scale."""
        if not self._enabled:
            return outputs
        return outputs * self._scale if isinstance(outputs, Tensor) else type(outputs)([self.scale(x) for x in outputs])

    def unscale_(self, optimizer: Any) -> None:
        """Take the scale from the gradients, to clip them, say; `step` does it otherwise. RuntimeError the second time before `update`."""
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._overflowed:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        with no_grad():
            for g in grads:
                g.mul_(1.0 / self._scale)
        self._overflowed[id(optimizer)] = not all(bool(g.isfinite().all()) for g in grads)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)`, unless a gradient is infinite or NaN. RuntimeError the second time before `update`."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._overflowed:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return None if self._overflowed[id(optimizer)] else optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """A smaller scale after an overflow, a larger one after growth_interval steps without; or new_scale.

        Raises AssertionError, as torch does, where there was neither `step` nor `unscale_` since the last one.
        """
        if not self._enabled:
            return
        if new_scale is None and not self._overflowed:
            raise AssertionError("update: no gradients were looked at since the last update; call step(optimizer) first")
        if new_scale is not None:
            self._scale = float(new_scale)
        elif any(self._overflowed.values()):
            self._scale, self._good_steps = self._scale * self._backoff_factor, 0
        else:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale, self._good_steps = grown if math.isfinite(grown) else self._scale, 0
        self._overflowed, self._stepped = {}, set()

    def get_scale(self) -> float:
        """The scale; 1.0 of a scaler that is switched off."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after growth_interval steps without an overflow."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Another factor from now on."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Another factor from now on."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """How many steps without an overflow the scale stays."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Another number of steps from now on."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        return self._good_steps if self._enabled else 0

    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale and how it changes, as torch's; empty of a scaler that is switched off."""
        if not self._enabled:
            return {}
        return {"scale": self._scale, "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
                "growth_interval": self._growth_interval, "_growth_tracker": self._good_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was called. Raises RuntimeError of an empty one, as torch does."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("load_state_dict: the source state dict is empty, possibly because it was saved from a scaler switched off")
        self._scale, self._good_steps = state_dict["scale"], state_dict["_growth_tracker"]
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]


def _says(text: str) -> bool:
    """Warn the caller that something is switched off; False."""
    warn(text)
    return False
