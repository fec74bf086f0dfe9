"""What containers of tensors (tensordict) and modules that wrap others (lightning) ask for. Beside torch, or under the hook alone."""

from __future__ import annotations

from tests.torch_api.both import beside_torch
from tests.torch_api.test_hook import program


def test_containers_are_mapped_by_their_own_methods():
    """A container with `_add_batch_dim`: its examples, results, results that are the same for all, and what is written to them."""
    program("""
        import torch
        from torch._C._functorch import _add_batch_dim, get_unwrapped, is_batchedtensor
        from torch._functorch.vmap import _maybe_remove_batch_dim

        class Pair:
            def __init__(self, a, b, size):
                self.a, self.b, self.shape = a, b, torch.Size(size)
            ndim, device = property(lambda self: len(self.shape)), torch.device("cpu")
            def copy(self):
                return Pair(self.a, self.b, self.shape)
            def _add_batch_dim(self, *, in_dim, vmap_level):
                size = [n for i, n in enumerate(self.shape) if i != in_dim]
                return Pair(_add_batch_dim(self.a, in_dim, vmap_level), _add_batch_dim(self.b, in_dim, vmap_level), size)
            def _maybe_remove_batch_dim(self, funcname, vmap_level, batch_size, out_dim):
                parts = (_maybe_remove_batch_dim(funcname, x, vmap_level, batch_size, out_dim) for x in (self.a, self.b))
                return Pair(*parts, self.shape if out_dim is None else (batch_size, *self.shape))

        a, b, x = torch.randn(3, 4), torch.randn(3, requires_grad=True), torch.randn(4)
        pair = Pair(a, b, [3])
        seen = []
        def f(p, x):
            seen.append((p.shape, p.a.shape, is_batchedtensor(p.a), is_batchedtensor(x), get_unwrapped(p.a).shape))
            return Pair(p.a * x, p.b + 1, []), p.a.sum()
        made, total = torch.vmap(f, (0, None))(pair, x)
        assert seen == [((), (4,), True, False, (3, 4))] and made.shape == (3,)
        assert torch.equal(made.a, a * x) and torch.equal(made.b, b + 1) and torch.allclose(total, a.sum(1))
        made.b.sum().backward()
        assert torch.equal(b.grad, torch.ones(3)) and not is_batchedtensor(a)
        turned, _ = torch.vmap(f, (-1, None), out_dims=(1, 0))(Pair(a.mT, a.mT, [4, 3]), torch.ones(4))
        assert torch.equal(turned.a, a.mT)
        same = torch.vmap(lambda p, y: p, (None, 0), out_dims=None)(pair, a)
        assert torch.equal(same.a, a)
        torch.vmap(lambda p: p.a.mul_(2).sum())(Pair(held := a.clone(), b, [3]))
        assert torch.equal(held, a * 2)
        for wrong in (lambda: torch.vmap(lambda p: p, out_dims=None)(pair), lambda: torch.vmap(f, (0, None), chunk_size=2)(pair, x)):
            try:
                wrong()
            except ValueError as error:
                assert "out_dims is None" in str(error) or "chunk_size" in str(error)
            else:
                raise AssertionError
    """)


def test_names_that_containers_ask_for():
    beside_torch("""
import os.path
import torch.distributions as D
from torch import nn
from torch.distributions.kl import _KL_REGISTRY
from torch.nn.modules.module import _global_parameter_registration_hooks as hooks, register_module_parameter_registration_hook
from torch.nn.parameter import _ParameterMeta
from torch.nn.utils._named_member_accessor import set_tensor, swap_tensor
from torch.utils import _pytree
say("folder", lambda: os.path.isdir(os.path.dirname(torch.__file__)))
say("all that dir tells of is there", lambda: [n for n in dir(D) if not hasattr(D, n)])
say("rules", lambda: [(D.Normal, D.Normal) in _KL_REGISTRY, (D.Normal, int) in _KL_REGISTRY])
handle = register_module_parameter_registration_hook(lambda module, name, param: None)
say("hooks", lambda: len(hooks))
handle.remove()
say("no hooks", lambda: [len(hooks), _ParameterMeta is type(nn.Parameter)])
layer = nn.BatchNorm1d(2)
old = layer.weight
say("swapped", lambda: [swap_tensor(layer, "weight", torch.zeros(2)) is old, layer.weight, list(layer._parameters)])
say("buffer", lambda: [swap_tensor(layer, "running_mean", torch.ones(2)), layer.running_mean])
say("other", lambda: [swap_tensor(layer, "extra", torch.ones(1), allow_missing=True) is None or True, layer.extra])
say("set", lambda: [set_tensor(layer, "weight", old), layer.weight is old])
def refused(*args):
    try:
        swap_tensor(*args)
    except (AttributeError, TypeError) as error:
        return [isinstance(error, AttributeError), isinstance(error, TypeError)]
say("wrong", lambda: [refused(layer, "none", torch.ones(1)), refused(layer, "weight", 3), refused(3, "weight", old)])
say("leaves", lambda: [_pytree.tree_is_leaf(x) for x in (1, [1], (), {}, torch.ones(1))])
best = torch.max(torch.tensor([[1.0, 3.0], [5.0, 2.0]]), 1)
kinds = torch.return_types
say("kinds", lambda: [isinstance(best, kinds.max), isinstance(best, kinds.aminmax), isinstance((1, 2), kinds.max)])
say("made", lambda: list(torch.return_types.max([torch.ones(1), torch.zeros(1)])))
x = torch.arange(6.0)
say("memory", lambda: [torch._C._is_alias_of(x, x[2:]), torch._C._is_alias_of(x, x.clone()), torch._C._is_torch_function_mode_enabled()])
say("size", lambda: x.untyped_storage().__sizeof__() - x[:0].clone().untyped_storage().__sizeof__())
""")


def test_types_of_pytrees_are_taken_away_and_given_back():
    beside_torch("""
from torch.utils import _pytree
class Box:
    def __init__(self, *parts):
        self.parts = parts
_pytree.register_pytree_node(Box, lambda b: (list(b.parts), None), lambda parts, _: Box(*parts))
say("a node", lambda: _pytree.tree_leaves(Box(1, 2)))
node = _pytree.SUPPORTED_NODES.pop(Box)
say("a leaf", lambda: [len(_pytree.tree_leaves(Box(1, 2))), Box in _pytree.SUPPORTED_NODES, _pytree.SUPPORTED_NODES.pop(Box, None)])
_pytree.SUPPORTED_NODES[Box] = node
say("again", lambda: _pytree.tree_leaves(Box(1, [2, 3])))
""")


def test_conversions_do_not_call_to():
    """`double()` and its like, whose module may have a `to` of its own."""
    beside_torch("""
from torch import nn
class Wrapped(nn.Linear):
    def to(self, *args, **kwargs):
        raise RuntimeError("not to be called")
layer = Wrapped(2, 1)
for name in ("double", "half", "bfloat16", "float", "cpu"):
    say(name, lambda: str(getattr(layer, name)().weight.dtype))
say("type", lambda: str(layer.type(torch.float64).weight.dtype))
""")


def test_state_dicts_of_modules_with_their_own():
    """What a module below says is its state, is; what it puts there by `_save_to_state_dict`, stands there in its place."""
    beside_torch("""
from torch import nn
class Renamed(nn.Linear):
    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        return super().state_dict(destination=destination, prefix=prefix + "inner.", keep_vars=keep_vars)
class Other(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "packed"] = torch.ones(1)
class More(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "more"] = torch.zeros(1)
torch.manual_seed(0)
model = nn.Sequential(Renamed(2, 1), Other(1, 1), More(1, 1), nn.BatchNorm1d(1))
say("state", lambda: [list(model.state_dict()), list(model.state_dict(prefix="x."))])
say("attributes", lambda: list(vars(model.state_dict())))
say("versions", lambda: [[k, v.get("version")] for k, v in model.state_dict()._metadata.items()])
there = {"first": 1}
say("there", lambda: [model.state_dict(destination=there) is there, list(there)])
say("kept", lambda: [v.requires_grad for v in model[3].state_dict(keep_vars=True).values()])
say("by position", lambda: list(nn.Linear(1, 1).state_dict({}, "a.", False)))
order = []
model[0].register_state_dict_pre_hook(lambda m, prefix, kept: order.append(["before", prefix]))
model.register_state_dict_pre_hook(lambda m, prefix, kept: order.append(["before", prefix]))
model[0].register_state_dict_post_hook(lambda m, state, prefix, local: order.append(["after", prefix, len(state)]))
model.register_state_dict_post_hook(lambda m, state, prefix, local: order.append(["after", prefix, len(state)]))
model.state_dict()
say("hooks", lambda: order)
say("repr", lambda: repr(nn.MultiheadAttention(4, 2)))
""")
