"""What an operation tells of itself: facts that passes and caches ask, and rules. Start at `Operation`.

`primitive.py` has the operations that have a name of their own, and what applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tracegrad.errors import AutogradError
from tracegrad.support import dtypes

if TYPE_CHECKING:
    from tracegrad.graph.ir import Aval, Node

# Families of operations that numpy may do when they are called; and of others whose calls may be recalled.
EAGER_FAMILIES = frozenset(("elementwise", "movement", "reduction", "arg_reduction", "contraction", "gather", "scatter", "dynamic_slice",
                            "scan", "sort", "selection", "attention"))
RECALLABLE = EAGER_FAMILIES | {"conv", "pool", "index", "recurrence"}


class Pair(NamedTuple):
    """A complex value as the code generator sees it: the nodes of its real and of its imaginary part."""

    re: Any
    im: Any


class KnownArray(NamedTuple):
    """What is known of an operand's array. rows: whether it is known to lie in C order."""

    shape: tuple[int, ...]
    dtype: dtypes.DType
    rows: bool


class Operation:
    """What a node applies: its facts, and its rules with their defaults.

    (Apart from `primitive.Primitive`, which calls them, so that a node can be typed without what makes nodes.)
    """

    name: ClassVar[str] = ""
    family: ClassVar[str] = ""              # how the code generator treats it
    makes: ClassVar[str] = ""               # what kernels call what it makes, where its name says how and not what
    differentiable: ClassVar[bool] = True
    required: ClassVar[tuple[str, ...]] = ("aval", "numpy")
    constant: ClassVar[bool] = True         # its result depends on operands and attributes alone
    expensive: ClassVar[bool] = False       # never computed twice (contractions, reductions, draws, gathers)
    selects_elements: ClassVar[bool] = False           # its elements are elements of its operands, and compared with them: see `to_keep`
    read_places: ClassVar[int] = 1          # of each operand, at which an element of the result may be found (roll: two)
    exact: ClassVar[bool] = False           # of numbers of a dtype it makes such: of 16 bits, computed as floats, they need not be rounded
    in_steps: ClassVar[bool] = False        # kernels make it of several operations, which of 16 bits are computed in float32
    saves: ClassVar[bool] = True            # its derivative reads values, which a backward without retain_graph gives up
    number: ClassVar[bool] = False          # a number, with its bits as an attribute: an operand of structures (canonical.py)
    boundary: ClassVar[bool] = False        # a program sees through it, which only differentiation cares about, or ends there (a transfer)
    scalar_polymorphic: ClassVar[bool] = False      # its derivative, written for one number as an operand, is right for every other
    registered: ClassVar[bool] = False      # in the registry: a function of its operands and attributes, which is no loop and no user's
    structural: Any = False                 # its derivative depends on the structure alone: of what is in the registry, unless it says no
    around: Any = None                      # of a call whose derivative is the user's: what those around it depend on
    executed: Any = None                    # the op that programs have in its place: see `saving_nothing`
    of_value: ClassVar[bool] = False        # its derivative reads its value and none of its operands
    cost: ClassVar[float] = 1.0             # nanoseconds of the numpy rule for one of the elements that `work` counts (see policy.py)
    linear: ClassVar[bool] = False          # in all its operands together: the tangent of the result is it, of the operands' tangents
    operator: ClassVar[tuple[str, int]] = ("", 0)     # how Python writes it, before or between operands, and how tightly that binds
    foldable: bool = True                   # its numpy rule may be used on constants; not if a user's expression has none
    part: ClassVar[bool] = False            # a part of what its operand's elements hold: a view, though not of whole elements
    stored: ClassVar[bool] = False          # a program writes its value to memory, whoever reads it
    reports: ClassVar[bool] = False         # a kernel that computes it may have an error to report (see ops/arrays/index_checks.py)
    # Of elementwise ops:
    flops: ClassVar[int] = 1                # what one element costs, for the schedule: an addition is 1
    wraps: ClassVar[bool] = False           # a signed result may overflow, undefined in C: it is computed as unsigned (of reductions, too)
    moves: ClassVar[bool] = False           # its elements are elements of its operands, bit for bit: numpy need not know their dtype
    single: ClassVar[bool] = False          # of 16 bits and a number, or what has no dimensions: computed in float32, as in torch
    placeless: ClassVar[bool] = False       # NumPy computes an element to the same bits wherever it is (of exp it may not)
    mixes: ClassVar[bool] = False           # `opencl` is right for a vector beside a scalar, too (operators are, builtins are not)
    nonnegative: ClassVar[bool] = False     # no element of a float result is below 0 (it may be NaN)
    monotone: ClassVar[bool] = False        # no operand makes the result smaller by becoming larger
    logic: Any = None                       # logic(self, *operands): what it is for bools, in bitwise operations; None: itself
    # Of complex operands: whether `vjp` multiplies by the complex derivative. autodiff conjugates it then, as torch's convention wants;
    # a rule that says False is right as it stands, because its factors are real or it conjugates them itself.
    holomorphic: ClassVar[bool] = False
    # Operands for the registry-driven tests: ((shape, shape, ...), attrs) each; elementwise ops have `domain` instead.
    cases: ClassVar[Sequence[tuple[tuple[Any, ...], dict[str, Any]]]] = ()

    @property
    def recallable(self) -> bool:
        """Whether what a node of it is, and its derivative, are functions of operands and attributes alone, and it reports nothing."""
        return self.registered and not self.reports and self.family in RECALLABLE

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        """The shape and dtype of the result; raises ShapeError or DTypeError."""
        raise NotImplementedError

    def numpy(self, *operands: Any, **attrs: Any) -> Any:
        """The meaning, on numpy arrays."""
        raise NotImplementedError

    def numpy_with(self, **attrs: Any) -> Any:
        """`numpy` for these attributes, to be called many times: what it does with them can be done once."""
        return partial(self.numpy, **attrs) if attrs else self.numpy

    def numpy_function(self, operands: Sequence[KnownArray], **attrs: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """A function of NumPy's that gives the bits of `numpy` for such operands, of float32 or float64, and what it gets after them.

        It takes an array for the result, `out`. None where there is none, or not for all operands like these.
        """
        return None

    def rule(self, attrs: dict[str, Any], dtype: dtypes.DType, given: Iterable[dtypes.DType]) -> Callable[..., Any]:
        """`numpy_with`, for operands of the dtypes `given` and a result of `dtype`.

        bfloat16 is computed in float32 and rounded once, as kernels do it. (ml_dtypes rounds after each addition of a sum, and numpy does
        not know where its NaN is sorted to.)
        """
        if self.moves or not (dtype == dtypes.bfloat16 or dtypes.bfloat16 in given) or not self.registered:
            plain: Callable[..., Any] = self.numpy_with(**attrs)
            return plain
        wide = self.numpy_with(**{k: dtypes.float32 if isinstance(v, np.dtype) and v == dtypes.bfloat16 else v for k, v in attrs.items()})

        def rule(*operands: Any) -> Any:
            made = wide(*[o.astype(np.float32) if o.dtype == dtypes.bfloat16 else o for o in map(np.asarray, operands)])
            return np.asarray(made, dtype) if dtype == dtypes.bfloat16 else made

        return rule

    def computed(self, operands: Sequence[Any], attrs: dict[str, Any], dtype: dtypes.DType) -> Any:
        """The result, of `dtype`, by numpy: from arrays."""
        return self.rule(attrs, dtype, [o.dtype for o in operands if isinstance(o, (np.ndarray, np.generic))])(*operands)

    def vjp(self, ct: Node, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """Cotangents of the operands (None: no dependence), from the cotangent `ct` of the result `y`; symbolic."""
        raise AutogradError(f"{self.name} has no derivative")

    # How it is computed of real numbers: pair(*operands, **attrs), an operand being a Pair, or a Node if it is real -> a Pair (or a
    # Node, of a real result). None: it takes no complex numbers. See codegen/graph/complex_pairs.py.
    pair: Any = None

    def interval(self, node: Node, *operands: tuple[int, int]) -> tuple[int, int] | None:
        """Between which integers the elements of an integer result lie, from those of the operands; None: nothing is known."""
        return None

    def work(self, y: Aval, *operands: Aval, **attrs: Any) -> float:
        """How many elements the numpy rule goes through: those of the result or of the largest operand, unless an op knows better."""
        return max([y.size, *[o.size for o in operands]])

    # For operations that are not in the registry: what plans depend on of it, as a tuple of plain data (see execute/plan_files.py); None:
    # unknown.
    described: Any = None

    # How f.source() writes a call, for operations that are not in the registry: python(define, operands as text, **attrs) -> text.
    # define(name, expression or graph) puts what the call needs in front of the function, and gives the name to use.
    python: Any = None

    def __repr__(self) -> str:
        return self.name
