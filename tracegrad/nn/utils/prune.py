"""Pruning: parameters some of whose elements are held at 0, under torch.nn.utils.prune's names. Start at `BasePruningMethod.apply`.

module.<name> is then <name>_orig, a parameter, times <name>_mask, a buffer of zeros and ones: computed whenever it is read, as in
parametrize.py. Pruned again, a share is that of what is left. A method of one's own is a class with a `compute_mask`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from tracegrad.errors import ArgumentError, MissingRuleError, ShapeError
from tracegrad.graph.operators import LINALG
from tracegrad.nn.module import Module
from tracegrad.nn.utils.convert_parameters import parameters_to_vector
from tracegrad.nn.utils.parametrize import compute_attribute, computed_attribute, removed_parts, taken_parameter
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.filled import ones_like, zeros_like
from tracegrad.tensors.creation.random_numbers import rand
from tracegrad.tensors.tensor import Tensor


class _Masked:
    """How a parameter comes of <name>_orig and <name>_mask."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: Module) -> Any:
        return getattr(module, f"{self.name}_orig") * getattr(module, f"{self.name}_mask")


class BasePruningMethod:
    """Base of methods: a subclass has `compute_mask` and, if it does not look at single elements, a PRUNING_TYPE.

    PRUNING_TYPE: "unstructured" (a parameter that was pruned is seen as the vector of what is left of it), "structured" (as the
    channels along `dim` that are left) or "global" (as it is).

    >>> class EveryOther(nn.utils.prune.BasePruningMethod):
    ...     def compute_mask(self, t, default_mask):
    ...         mask = default_mask.clone()
    ...         mask.view(-1)[::2] = 0
    ...         return mask
    >>> method = EveryOther.apply(nn.Linear(4, 3), "weight")
    """

    PRUNING_TYPE: ClassVar[str] = "unstructured"
    dim: int

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        """The mask, of t's shape: 0 for what is pruned. default_mask: what was pruned before. t: how important elements are."""
        raise MissingRuleError(f"{type(self).__name__} has no compute_mask")

    @classmethod
    def apply(cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any) -> Self:
        """Prune module.<name> by cls(*args, **kwargs), and return that. importance_scores: a tensor to look at instead of the values."""
        method = cls(*args, **kwargs)
        known = computed_attribute(module, name)
        present = getattr(module, name, None)
        if not isinstance(present, Tensor) or not (isinstance(known, _Masked) or name in module._parameters):
            raise ArgumentError(f"prune: {type(module).__name__} has no parameter {name!r}")
        with no_grad():
            before = getattr(module, f"{name}_mask") if isinstance(known, _Masked) else ones_like(present)
            mask = method.further(_scores(present, importance_scores), before)
        if isinstance(known, _Masked):
            module._buffers[f"{name}_mask"] = mask
            return method
        module.register_parameter(f"{name}_orig", taken_parameter("prune", module, name))
        module.register_buffer(f"{name}_mask", mask)
        compute_attribute(module, name, _Masked(name))
        return method

    def further(self, t: Any, mask: Any) -> Any:
        """The mask of what is left after this method prunes a tensor of which `mask` is left."""
        if self.PRUNING_TYPE == "global" or bool((mask == 1).all()):
            found = self.compute_mask(t, default_mask=mask)
        else:
            if self.PRUNING_TYPE == "structured":
                left = (mask != 0).movedim(self.dim, 0).flatten(1).any(1).nonzero()[:, 0]
                where: Any = (slice(None),) * (self.dim % mask.ndim) + (left,)
            else:
                where = mask == 1
            found = mask.clone()
            found[where] = self.compute_mask(t[where], default_mask=mask[where])
        if found.shape != mask.shape:
            raise ShapeError(f"prune: {type(self).__name__}.compute_mask gave a mask of shape {found.shape} for {mask.shape}")
        return found.to(dtype=t.dtype)

    def prune(self, t: Any, default_mask: Any = None, importance_scores: Any = None) -> Any:
        """t with what this method prunes at 0."""
        with no_grad():
            mask = self.further(_scores(t, importance_scores), ones_like(t) if default_mask is None else default_mask)
        return t * mask

    def remove(self, module: Module, name: str) -> None:
        """As `remove`."""
        remove(module, name)


def _scores(t: Any, given: Any) -> Any:
    if given is None:
        return t.detach()
    if given.shape != t.shape:
        raise ShapeError(f"prune: importance_scores has shape {given.shape}, the parameter {t.shape}")
    return given.detach()


def _number(amount: Any, size: int, what: str) -> int:
    """How many of `size` an amount is."""
    number = amount if isinstance(amount, int) else round(amount * size)
    if number > size:
        raise ArgumentError(f"prune: amount {amount} is more than the {size} {what} that there are")
    return number


class _Amount(BasePruningMethod):
    """Of a share (a float from 0 to 1) or a number (an int) of the elements or channels."""

    def __init__(self, amount: Any) -> None:
        number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if not number or not 0 <= amount or (isinstance(amount, float) and amount > 1):
            raise ArgumentError(f"prune: amount must be a float from 0 to 1 or an int of at least 0, got {amount!r}")
        self.amount = amount

    def without(self, scores: Any, default_mask: Any, largest: bool = False) -> Any:
        """The mask without the elements of the least scores, or of the largest."""
        number = _number(self.amount, scores.numel(), "elements")
        mask = default_mask.clone()
        mask.view(-1)[scores.reshape(-1).topk(number, largest=largest).indices] = 0
        return mask


class RandomUnstructured(_Amount):
    """Elements at random."""

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        return self.without(rand(*t.shape, device=t.device), default_mask, largest=True)         # the largest, as torch does


class L1Unstructured(_Amount):
    """The elements that are nearest to 0."""

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        return self.without(t.abs(), default_mask)


class _Structured(_Amount):
    """Whole channels along dim."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Any, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def importance(self, channels: Any) -> Any:
        """How important each row of a matrix is."""
        raise MissingRuleError(f"{type(self).__name__} has no importance")

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        if t.ndim < 2 or not -t.ndim <= self.dim < t.ndim:
            raise ShapeError(f"prune: channels along dim {self.dim} need a tensor of 2 dimensions or more that has it, got {t.shape}")
        channels = t.movedim(self.dim, 0).flatten(1)
        number = _number(self.amount, channels.shape[0], "channels")
        kept = zeros_like(channels[:, 0])
        kept[self.importance(channels).topk(channels.shape[0] - number).indices] = 1
        return default_mask * kept.reshape([-1 if d == self.dim % t.ndim else 1 for d in range(t.ndim)])


class RandomStructured(_Structured):
    """Channels along dim at random."""

    def importance(self, channels: Any) -> Any:
        return rand(channels.shape[0], device=channels.device)


class LnStructured(_Structured):
    """The channels along dim of the least n-norm (n: a number, or "fro")."""

    def __init__(self, amount: Any, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = 2 if n == "fro" else n

    def importance(self, channels: Any) -> Any:
        return LINALG["vector_norm"](channels, self.n, dim=1)


class CustomFromMask(BasePruningMethod):
    """What is 0 in a mask."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Any) -> None:
        self.mask = mask

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        if self.mask.shape != t.shape:
            raise ShapeError(f"prune: the mask has shape {self.mask.shape}, the parameter {t.shape}")
        return default_mask * self.mask.to(dtype=default_mask.dtype, device=default_mask.device)


class Identity(BasePruningMethod):
    """Nothing: the names are those of a pruned parameter."""

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        return default_mask


def identity(module: Module, name: str) -> Module:
    """Give module.<name> the names of a pruned parameter, and prune nothing. Returns the module, as all of these."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune elements at random. amount: a share (a float from 0 to 1) of what is left, or a number (an int)."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Module, name: str, amount: float, importance_scores: Tensor | None = None) -> Module:
    """Prune the elements that are nearest to 0, or of the least importance_scores.

    >>> layer = nn.utils.prune.l1_unstructured(nn.Linear(8, 4), "weight", amount=0.5)
    >>> int(layer.weight_mask.sum())
    16
    """
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prune channels along dim at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module: Module, name: str, amount: float, n: Any, dim: int, importance_scores: Tensor | None = None) -> Module:
    """Prune the channels along dim of the least n-norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune what is 0 in a mask of the parameter's shape."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(parameters: Iterable[tuple[Module, str]], pruning_method: type[BasePruningMethod],
                        importance_scores: Mapping[tuple[Module, str], Tensor] | None = None, **kwargs: Any) -> None:
    """Prune all of `parameters`, pairs of a module and a name, as if they were one vector, by pruning_method(**kwargs).

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    >>> nn.utils.prune.global_unstructured([(model[0], "weight"), (model[1], "weight")], nn.utils.prune.L1Unstructured, amount=0.25)
    """
    pairs, method = list(parameters), pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise ArgumentError(f"global_unstructured: {pruning_method.__name__} is {method.PRUNING_TYPE}; it must be unstructured")
    given = importance_scores or {}
    with no_grad():
        present: Sequence[Any] = [getattr(module, name).detach() for module, name in pairs]
        scores = parameters_to_vector([_scores(p, given.get(pair)) for p, pair in zip(present, pairs, strict=True)])
        masks = [getattr(module, f"{name}_mask", None) for module, name in pairs]
        before = parameters_to_vector([ones_like(p) if m is None else m for p, m in zip(present, masks, strict=True)])
        parts = method.further(scores, before).split([p.numel() for p in present])
    for (module, name), p, part in zip(pairs, present, parts, strict=True):
        custom_from_mask(module, name, part.reshape(p.shape))


def remove(module: Module, name: str) -> Module:
    """Make module.<name> a plain parameter again, with what was pruned at 0; returns the module."""
    removed_parts("prune.remove", _Masked, module, name, f"{name}_orig", f"{name}_mask")
    return module


def is_pruned(module: Module) -> bool:
    """Whether a parameter of the module or of one inside it is pruned."""
    return any(isinstance(computed_attribute(m, name.removesuffix("_mask")), _Masked) for m in module.modules() for name in m._buffers)


__all__ = ["BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "RandomStructured", "RandomUnstructured",
           "custom_from_mask", "global_unstructured", "identity", "is_pruned", "l1_unstructured", "ln_structured", "random_structured",
           "random_unstructured", "remove"]
