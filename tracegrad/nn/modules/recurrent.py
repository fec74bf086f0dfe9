"""Recurrent layers and their cells: RNN, LSTM, GRU. Start at `_Recurrent.forward`.

One product maps the whole sequence from input to gates before the loop over time, which is left with h @ Wᵀ and the gates'
arithmetic: a `tg.scan`, in a trace one operation whatever the sequence's length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from tracegrad.control_flow.functions import scan
from tracegrad.control_flow.scan import scan_nodes
from tracegrad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, warn
from tracegrad.graph.operation_families import not_taken
from tracegrad.graph.operators import PUBLIC
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter
from tracegrad.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from tracegrad.ops.arguments import on_nodes, only_tensors
from tracegrad.support import modes
from tracegrad.tensors.creation.filled import empty, zeros
from tracegrad.tensors.tensor import Tensor

State = tuple[Tensor, ...]
_NONLINEARITIES: dict[str, Callable[[Any], Any]] = {"tanh": PUBLIC["tanh"], "relu": PUBLIC["relu"]}


# ------------------------------------------------------------------------------------------------------------- one time step
# Each takes the gates' share from the input (with its bias), the state, the weight of h and the bias of h; and gives the new state.


@on_nodes
def _rnn_step(nonlinearity: str, gates: Tensor, state: State, weight: Tensor, bias: Any) -> State:
    return (_NONLINEARITIES[nonlinearity](gates + F.linear(state[0], weight, bias)),)


@on_nodes
def _lstm_step(gates: Tensor, state: State, weight: Tensor, bias: Any) -> State:
    i, f, g, o = (gates + F.linear(state[0], weight, bias)).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@on_nodes
def _gru_step(gates: Tensor, state: State, weight: Tensor, bias: Any) -> State:
    h, = state
    (r, z, n), (r_h, z_h, n_h) = gates.chunk(3, -1), F.linear(h, weight, bias).chunk(3, -1)
    n = (n + (r + r_h).sigmoid() * n_h).tanh()
    return (n + (z + z_h).sigmoid() * (h - n),)


_STEPS: dict[str, Callable[..., State]] = {"LSTM": _lstm_step, "GRU": _gru_step, **{n: partial(_rnn_step, n) for n in _NONLINEARITIES}}


def _cell_step(kind: str, row: tuple[Tensor, ...], state: State, weight: Tensor, bias: Any, projection: Any) -> tuple[State, Tensor]:
    """A step of a layer: the new state, and the output. row: the gates' share from the input, and which sequences still go on."""
    new = _STEPS[kind](row[0], state, weight, bias)
    if projection is not None:
        new = (F.linear(new[0], projection), *new[1:])
    return new if len(row) == 1 else tuple(PUBLIC["where"](row[1], a, b) for a, b in zip(new, state, strict=True)), new[0]


@on_nodes
def _layer(kind: str, rows: tuple[Tensor, ...], state: State, weight: Tensor, bias: Any, projection: Any, reverse: bool) -> Any:
    """A layer over a whole sequence as one operation, where no trace makes one of `scan`: the outputs and the last state."""
    def cell_step(state: Any, row: Any) -> Any:
        new, out = _cell_step(kind, tuple(row), tuple(state), weight, bias, projection)
        return list(new), [out]

    last, (outs,) = scan_nodes(cell_step, state, rows, reverse)  # type: ignore[arg-type]
    return outs, tuple(last)


def _dropout_of_packed(x: Tensor, packed: PackedSequence, p: float) -> Tensor:
    """Dropout of a padded (L, N, in) whose elements are those of `packed`."""
    lengths = packed.lengths()
    elements = pack_padded_sequence(x, lengths, enforce_sorted=packed.sorted_indices is None)
    return pad_packed_sequence(elements._replace(data=F.dropout(elements.data, p)))[0]


# ------------------------------------------------------------------------------------------------------------------- layers


class _Recurrent(Module):
    """Base of RNN, LSTM and GRU: layers and directions of one kind of step.

    Parameters, per layer k and with the suffix "_reverse" for the backward direction, uniform in ±1/sqrt(hidden_size) at first:
    weight_ih_l{k} (gates * hidden, in), weight_hh_l{k} (gates * hidden, out), bias_ih_l{k}, bias_hh_l{k} (gates * hidden), and with
    proj_size weight_hr_l{k} (proj_size, hidden).
    """

    gates: ClassVar[int] = 1
    step: str                                                 # of _STEPS
    states: ClassVar[tuple[str, ...]] = ("h_0",)

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool, dropout: float,
                 bidirectional: bool, proj_size: int, device: Any, dtype: Any) -> None:
        super().__init__()
        name = type(self).__name__
        for what, value, cls in (("input_size", input_size, int), ("hidden_size", hidden_size, int), ("bias", bias, bool),
                                  ("batch_first", batch_first, bool)):
            if not isinstance(value, cls):
                raise ArgumentTypeError(f"{name}: {what} must be of type {cls.__name__}, got {value!r}")
        if input_size < 1 or hidden_size < 1 or num_layers < 1:
            raise ArgumentError(f"{name}: input_size, hidden_size and num_layers must be at least 1, got {input_size}, {hidden_size} "
                                f"and {num_layers}")
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ArgumentError(f"{name}: dropout must be a probability from 0 to 1, got {dropout}")
        if not 0 <= proj_size < hidden_size:
            raise ArgumentError(f"{name}: proj_size must be from 0 to below hidden_size {hidden_size}, got {proj_size}")
        if dropout and num_layers == 1:
            warn(f"{name}: dropout acts between layers, so dropout={dropout} does nothing with num_layers=1")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional, self.proj_size = batch_first, float(dropout), bidirectional, proj_size
        out, rows = proj_size or hidden_size, self.gates * hidden_size
        for layer in range(num_layers):
            for end in self._ends(layer):
                columns = input_size if layer == 0 else out * len(self._ends(0))
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns), "weight_hh": (rows, out)}
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
                shapes |= {"weight_hr": (proj_size, hidden_size)} if proj_size else {}
                for kind, shape in shapes.items():
                    self.register_parameter(kind + end, Parameter(empty(*shape, dtype=dtype, device=device)))
        self.reset_parameters()

    def _ends(self, layer: int) -> list[str]:
        """How the names of a layer's parameters end, one for each direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][:2 if self.bidirectional else 1]

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    @property
    def mode(self) -> str:
        """What torch calls the kind of network: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU"."""
        return f"RNN_{self.step.upper()}" if self.step in _NONLINEARITIES else self.step

    def flatten_parameters(self) -> None:
        """Does nothing, as there is nothing to do: weights need no common block of memory here."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _all_weights(self) -> list[list[str]]:
        """The names of `all_weights`, as torch calls them; programs also read them and the parameters in one list."""
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else []), *(["weight_hr"] if self.proj_size else [])]
        return [[name + end for name in names] for layer in range(self.num_layers) for end in self._ends(layer)]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def _run(self, input: Any, hx: State | None) -> tuple[Any, State]:
        name = type(self).__name__
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        if modes.state.autocast is not None:
            input, hx = modes.state.autocast.cast("lstm", (input, hx), {})[0]
        only_tensors(name, input=input)
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: input must be (L, N, {self.input_size}), (N, L, {self.input_size}) with batch_first, or "
                             f"(L, {self.input_size}), got {input.shape}")
        if input.dtype.kind in "iub":
            raise not_taken(name, input.dtype)
        single = input.ndim == 2
        x = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        if single and hx is not None:
            hx = tuple(s.unsqueeze(1) if s.ndim == 2 else s for s in hx)
        y, last = self._layers(x, self._initial(x, hx), None)
        if single:
            return y.squeeze(1), tuple(s.squeeze(1) for s in last)
        return y.transpose(0, 1) if self.batch_first else y, last

    def _run_packed(self, packed: PackedSequence, hx: State | None) -> tuple[PackedSequence, State]:
        """Padded, run under a mask that holds each state where its sequence ended, and packed again."""
        x, _ = pad_packed_sequence(packed)
        lengths = packed.lengths()
        going = PUBLIC["tensor"]([[[t < length] for length in lengths] for t in range(x.shape[0])], device=x.device)       # (L, N, 1)
        y, last = self._layers(x, self._initial(x, hx), going, packed)
        return pack_padded_sequence(y, lengths, enforce_sorted=packed.sorted_indices is None), last

    def _initial(self, x: Tensor, hx: State | None) -> State:
        name, rows = type(self).__name__, self.num_layers * (1 + self.bidirectional)
        shapes = [(rows, x.shape[1], size) for size in (self.proj_size or self.hidden_size, self.hidden_size)[:len(self.states)]]
        if hx is None:
            return tuple(zeros(*shape, dtype=x.dtype, device=x.device) for shape in shapes)
        for what, given, shape in zip(self.states, hx, shapes, strict=True):
            if given.shape != shape:
                raise ShapeError(f"{name}: {what} must be (layers * directions, N, size) = {shape}, got {given.shape}")
            if given.dtype != x.dtype:
                raise DTypeError(f"{name}: input is {x.dtype} and {what} {given.dtype}; cast one of them")
        return tuple(hx)

    def _layers(self, x: Tensor, initial: State, going: Tensor | None, packed: PackedSequence | None = None) -> tuple[Tensor, State]:
        """All layers over (L, N, in); the outputs (L, N, out) and the last states (layers * directions, N, size).

        packed: what x was padded of. Dropout draws for its elements alone, in their order.
        """
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout) if packed is None else _dropout_of_packed(x, packed, self.dropout)
            outs = []
            for end in self._ends(layer):
                out, state = self._direction(x, tuple(s[len(last)] for s in initial), end, going)
                outs.append(out)
                last.append(state)
            x = PUBLIC["cat"](outs, -1) if len(outs) > 1 else outs[0]
        return x, tuple(PUBLIC["stack"](list(s)) for s in zip(*last, strict=True))

    def _direction(self, x: Tensor, state: State, end: str, going: Tensor | None) -> tuple[Tensor, State]:
        weight, bias = getattr(self, "weight_hh" + end), getattr(self, "bias_hh" + end) if self.bias else None
        projection = getattr(self, "weight_hr" + end) if self.proj_size else None
        if not x.shape[0]:
            raise ShapeError(f"{type(self).__name__}: the sequence has length 0; it needs at least one step")

        first = getattr(self, "bias_ih" + end) if self.bias else None
        if bias is not None and self.step != "GRU":             # others only add it: once, then, instead of at every iteration
            first, bias = first + bias, None
        gates = F.linear(x, getattr(self, "weight_ih" + end), first)
        if modes.state.autocast is not None:
            weight, bias, projection = modes.state.autocast.cast("lstm", (weight, bias, projection), {})[0]
        rows, reverse = (gates,) if going is None else (gates, going), end.endswith("_reverse")
        if modes.state.trace is None and not modes.state.examples:
            return _layer(self.step, rows, state, weight, bias, projection, reverse)  # type: ignore[no-any-return]
        last, outs = scan(lambda state, row: _cell_step(self.step, row, state, weight, bias, projection), state, rows, reverse=reverse)
        return outs, last

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (("proj_size", 0), ("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0.0),
                              ("bidirectional", False)):
            value = getattr(self, name)
            text += "" if value == default else f", {name}={value}"
        return text


class RNN(_Recurrent):
    """Elman's recurrent network (1990): h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu with nonlinearity="relu".

    input_size, hidden_size: numbers of features. num_layers: layers that feed each other, with dropout between them while training.
    bidirectional: a second network runs backward in time, and outputs are concatenated. batch_first: input and output are (N, L, *).
    dtype: of the weights (default: the default float one). Raises ShapeError for other shapes.

    >>> rnn = nn.RNN(10, 20, num_layers=2)
    >>> output, h_n = rnn(tg.randn(5, 3, 10))          # (5, 3, 20), (2, 3, 20)
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
                 dtype: Any = None) -> None:
        if nonlinearity not in _NONLINEARITIES:
            raise ArgumentError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        self.nonlinearity = self.step = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """input: (L, N, in), or (N, L, in) with batch_first, or (L, in), or a PackedSequence; hx: (layers * directions, N, hidden).

        Returns the outputs of the last layer, (L, N, directions * hidden) or as the input is, and the last h of every layer and direction.
        Raises ShapeError or DTypeError for what does not fit.
        """
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h


class GRU(_Recurrent):
    """Gated recurrent units (Cho et al. 2014), torch's form: r, z = sigmoid(W x + b + U h + c), n = tanh(W x + b + r (U h + c)),
    h' = (1 - z) n + z h; the gates r, z, n stand in this order in the weights. Arguments and shapes as in `RNN`.
    dtype: of the weights (default: the default float one). Raises ShapeError for other shapes.

    >>> gru = nn.GRU(10, 20, batch_first=True, bidirectional=True)
    >>> output, h_n = gru(tg.randn(3, 5, 10))          # (3, 5, 40), (2, 3, 20)
    """

    gates = 3
    step = "GRU"

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """As `RNN.forward`."""
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber 1997): i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of W x + b + U h + c,
    c' = f c + i g, h' = o tanh(c'); with proj_size, h' is mapped by weight_hr (Sak et al. 2014). Arguments and shapes as in `RNN`.
    dtype: of the weights (default: the default float one). Raises ShapeError for other shapes.

    >>> lstm = nn.LSTM(10, 20, num_layers=2)
    >>> output, (h_n, c_n) = lstm(tg.randn(5, 3, 10))  # (5, 3, 20), (2, 3, 20), (2, 3, 20)
    """

    gates, states = 4, ("h_0", "c_0")
    step = "LSTM"

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """As `RNN.forward`; hx and the last state are pairs (h, c), where h has proj_size features if that is given."""
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ArgumentError(f"LSTM: hx must be a pair (h_0, c_0), got {type(hx).__name__}")
        output, (h, c) = self._run(input, None if hx is None else tuple(hx))
        return output, (h, c)


# -------------------------------------------------------------------------------------------------------------------- cells


class _Cell(Module):
    """Base of cells, one step of one layer: weight_ih (gates * hidden, in), weight_hh (gates * hidden, hidden), bias_ih, bias_hh."""

    gates: ClassVar[int] = 1
    step: str                                                 # of _STEPS
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        shapes = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size), "bias_ih": (rows,), "bias_hh": (rows,)}
        for name, shape in shapes.items():
            wanted = bias or name.startswith("weight")
            self.register_parameter(name, Parameter(empty(*shape, dtype=dtype, device=device)) if wanted else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _run(self, input: Tensor, hx: State | None, count: int = 1) -> State:
        name = type(self).__name__
        only_tensors(name, input=input)
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: input must be (N, {self.input_size}) or ({self.input_size},), got {input.shape}")
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            hx = tuple(zeros(*shape, dtype=input.dtype, device=input.device) for _ in range(count))
        for given in hx:
            if given.shape != shape:
                raise ShapeError(f"{name}: the state must be {shape}, got {given.shape}")
        return _STEPS[self.step](F.linear(input, self.weight_ih, self.bias_ih), hx, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
        return text + (f", nonlinearity={self.step}" if self.step == "relu" else "")


class RNNCell(_Cell):
    """One step of `RNN`: (N, input_size), (N, hidden_size) -> (N, hidden_size); also without N.

    Raises ShapeError for other shapes; dtypes are promoted.

    >>> cell = nn.RNNCell(10, 20)
    >>> h = cell(tg.randn(3, 10))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
                 dtype: Any = None) -> None:
        if nonlinearity not in _NONLINEARITIES:
            raise ArgumentError(f"RNNCell: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = self.step = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._run(input, None if hx is None else (hx,))[0]


class GRUCell(_Cell):
    """One step of `GRU`: (N, input_size), (N, hidden_size) -> (N, hidden_size); also without N.

    Raises ShapeError for other shapes; dtypes are promoted.

    >>> nn.GRUCell(10, 20)(tg.randn(3, 10)).shape
    """

    gates = 3
    step = "GRU"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._run(input, None if hx is None else (hx,))[0]


class LSTMCell(_Cell):
    """One step of `LSTM`: (N, input_size), (h, c) -> (h', c'), each (N, hidden_size); also without N.

    Raises ShapeError for other shapes; dtypes are promoted.

    >>> h, c = nn.LSTMCell(10, 20)(tg.randn(3, 10))
    """

    gates = 4
    step = "LSTM"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ArgumentError(f"LSTMCell: hx must be a pair (h, c), got {type(hx).__name__}")
        h, c = self._run(input, None if hx is None else tuple(hx), 2)
        return h, c
