"""Lazy layers: the size of the input is left out, and taken from the first input. Start at `_Lazy`.

>>> net = nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
>>> net(tg.zeros(1, 3, 9, 9)).shape
(1, 10)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tracegrad.errors import ShapeError, TraceError
from tracegrad.nn.module import Module
from tracegrad.nn.modules.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tracegrad.nn.modules.linear import Linear
from tracegrad.nn.modules.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from tracegrad.nn.modules.sizes import Size
from tracegrad.nn.parameter import UninitializedParameter
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.creation.filled import zeros


class LazyModuleMixin:
    """In front of Module as a base, as torch's: `initialize_parameters(*inputs)` is called first where parameters have no shape yet.

    Then the module is one of the class cls_to_become, if that is given.
    """

    cls_to_become: ClassVar[type[Module] | None] = None

    def has_uninitialized_params(self: Any) -> bool:
        """Whether a parameter has no shape yet."""
        return any(isinstance(p, UninitializedParameter) for p in self._parameters.values())

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Give the parameters their shapes and initial values, by the first inputs."""
        raise NotImplementedError(f"{type(self).__name__}: initialize_parameters is not written")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.has_uninitialized_params():
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        if state.trace is not None:
            raise TraceError(f"{type(self).__name__}: its parameters get their shapes at its first call, which cannot be inside @trace "
                             f"({state.trace.name}); call the model once before")
        self.initialize_parameters(*args, **kwargs)
        if self.cls_to_become is None:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        self.__class__ = self.cls_to_become  # type: ignore[assignment]
        return self(*args, **kwargs)


class _Lazy(LazyModuleMixin, Module):
    """Mixin in front of a layer that is made for 0 inputs: at the first call it gets its shapes and becomes that layer.

    Its parameters stay the same objects. Move the module to its dtype and device first. An optimizer that is made before
    the first call makes its state at its first step; what is traced is made after the first call.
    """

    sized: ClassVar[str]                                    # the attribute that the input tells
    place: ClassVar[int]                                    # which dimension of the input it is

    def has_uninitialized_params(self) -> bool:
        """Whether the size of the input is not known yet."""
        return not getattr(self, self.sized)

    def _wait(self) -> None:
        """Make the parameters whose shape depends on the input uninitialized ones."""
        for name, p in self._parameters.items():
            if p is not None and not p.numel():
                self._parameters[name] = UninitializedParameter(p.requires_grad, p.device, p.dtype)

    def _shape(self, name: str, count: int) -> tuple[int, ...]:
        """The shape of a parameter or buffer for an input of that size."""
        return (count,)

    def initialize_parameters(self, input: Any, *args: Any, **kwargs: Any) -> None:
        """Give the parameters their shapes and initial values, by the first input."""
        if not -input.ndim <= self.place < input.ndim:
            raise ShapeError(f"{type(self).__name__}: cannot tell {self.sized} from an input of shape {input.shape}")
        if not self.has_uninitialized_params():
            return
        count = input.shape[self.place]
        groups = getattr(self, "groups", 1)
        if not count or count % groups:
            raise ShapeError(f"{type(self).__name__}: {self.sized} {count}, of an input {input.shape}, must be a positive multiple of "
                             f"groups {groups}")
        setattr(self, self.sized, count)
        if self._give({name: self._shape(name, count) for name in (*self._parameters, *self._buffers)}):
            with no_grad():
                self.reset_parameters()

    def _give(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Shapes to what waits for one; whether anything did."""
        waiting = [p for p in self._parameters.values() if isinstance(p, UninitializedParameter)]
        for name, p in self._parameters.items():
            if isinstance(p, UninitializedParameter) and name in shapes:
                p.materialize(shapes[name])
        for name, b in self._buffers.items():
            if b is not None and b.shape == (0,) and name in shapes:
                self._buffers[name] = zeros(shapes[name], dtype=b.dtype, device=b.device)
                waiting.append(b)  # type: ignore[arg-type]
        return bool(waiting)

    def reset_parameters(self) -> None:
        """Draw the initial values anew, if the shapes are known."""
        if not self.has_uninitialized_params():
            super().reset_parameters()  # type: ignore[misc]

    def _tg_before_loading(self, given: Mapping[str, Any]) -> None:
        """Take the shapes of a state dict's values (by the names that they have here)."""
        self._give({name: tuple(value.shape) for name, value in given.items()})


class LazyLinear(_Lazy, Linear):
    """`Linear` whose in_features is the last size of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyLinear(2)(tg.rand(4, 3)).shape
    """

    cls_to_become, sized, place = Linear, "in_features", -1

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, out_features, bias, device, dtype)
        self._wait()

    def _shape(self, name: str, count: int) -> tuple[int, ...]:
        return (self.out_features, count)


class _LazyChannels(_Lazy):
    sized = "in_channels"

    def _shape(self, name: str, count: int) -> tuple[int, ...]:
        channels = (count, self.out_channels // self.groups) if self.transposed else (self.out_channels, count // self.groups)
        return *channels, *self.kernel_size


class _LazyConv(_LazyChannels):
    def __init__(self, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1,
                 groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, out_channels, kernel_size, stride, padding, dilation, groups, bias,  # type: ignore[call-arg]
                         padding_mode, device, dtype)
        self._wait()


class _LazyConvTranspose(_LazyChannels):
    def __init__(self, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                 groups: int = 1, bias: bool = True, dilation: Size = 1, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(0, out_channels, kernel_size, stride, padding, output_padding, groups, bias,  # type: ignore[call-arg]
                         dilation, padding_mode, device, dtype)
        self._wait()


class _LazyNorm(_Lazy):
    sized = "num_features"

    def __init__(self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
                 device: Any = None, dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__(0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)  # type: ignore[call-arg]
        self._wait()


class LazyConv1d(_LazyConv, Conv1d):
    """`Conv1d` whose in_channels are those of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyConv1d(3, kernel_size=2)(tg.rand(1, 2, 4)).shape
    """

    cls_to_become, place = Conv1d, -2


class LazyConv2d(_LazyConv, Conv2d):
    """`Conv2d` whose in_channels are those of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyConv2d(3, kernel_size=2)(tg.rand(1, 2, 4, 4)).shape
    """

    cls_to_become, place = Conv2d, -3


class LazyConv3d(_LazyConv, Conv3d):
    """`Conv3d` whose in_channels are those of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyConv3d(3, kernel_size=2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    cls_to_become, place = Conv3d, -4


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """`ConvTranspose1d` whose in_channels are those of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyConvTranspose1d(3, kernel_size=2)(tg.rand(1, 2, 4)).shape
    """

    cls_to_become, place = ConvTranspose1d, -2


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """`ConvTranspose2d` whose in_channels are those of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyConvTranspose2d(3, kernel_size=2)(tg.rand(1, 2, 4, 4)).shape
    """

    cls_to_become, place = ConvTranspose2d, -3


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """`ConvTranspose3d` whose in_channels are those of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyConvTranspose3d(3, kernel_size=2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    cls_to_become, place = ConvTranspose3d, -4


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """`BatchNorm1d` whose num_features are the channels of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyBatchNorm1d()(tg.rand(1, 2, 4)).shape
    """

    cls_to_become, place = BatchNorm1d, 1


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """`BatchNorm2d` whose num_features are the channels of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyBatchNorm2d()(tg.rand(1, 2, 4, 4)).shape
    """

    cls_to_become, place = BatchNorm2d, 1


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """`BatchNorm3d` whose num_features are the channels of the first input.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyBatchNorm3d()(tg.rand(1, 2, 4, 4, 4)).shape
    """

    cls_to_become, place = BatchNorm3d, 1


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """`InstanceNorm1d` whose num_features are the channels of the first input; affine and with running statistics unless told otherwise.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyInstanceNorm1d()(tg.rand(1, 2, 4)).shape
    """

    cls_to_become, place = InstanceNorm1d, -2


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """`InstanceNorm2d` whose num_features are the channels of the first input; affine and with running statistics unless told otherwise.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyInstanceNorm2d()(tg.rand(1, 2, 4, 4)).shape
    """

    cls_to_become, place = InstanceNorm2d, -3


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """`InstanceNorm3d` whose num_features are the channels of the first input; affine and with running statistics unless told otherwise.

    The shapes and dtypes are those. Raises ShapeError for an input that does not tell.

    >>> nn.LazyInstanceNorm3d()(tg.rand(1, 2, 4, 4, 4)).shape
    """

    cls_to_become, place = InstanceNorm3d, -4
