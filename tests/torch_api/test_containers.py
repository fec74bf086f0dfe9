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
            def __getitem__(self, part):
                return Pair(self.a[part], self.b[part], self.a[part].shape[:len(self.shape)])
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                assert func is torch.cat
                pairs, dim = args
                made = Pair(*(torch.cat([getattr(p, n) for p in pairs], dim) for n in "ab"), [])
                made.shape = made.a.shape[:pairs[0].ndim]
                return made
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
        made, total = torch.vmap(f, (0, None), chunk_size=2)(pair, x)
        assert made.shape == (3,) and torch.equal(made.a, a * x) and torch.equal(made.b, b + 1) and torch.allclose(total, a.sum(1))
        try:
            torch.vmap(lambda p: p, out_dims=None)(pair)
        except ValueError as error:
            assert "out_dims is None" in str(error)
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


def test_transforms_take_registered_containers_apart():
    beside_torch("""
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils import _pytree
class Box:
    def __init__(self, a, b):
        self.a, self.b = a, b
_pytree.register_pytree_node(Box, lambda x: ([x.a, x.b], None), lambda parts, _: Box(*parts))
torch.manual_seed(0)
box = Box(torch.randn(4, 3), torch.randn(4, 3))
parts = lambda x: [x.a, x.b]
say("vmap", lambda: vmap(lambda x: (x.a * x.b).sum())(box))
say("results", lambda: parts(vmap(lambda x: Box(x.a * 2, x.b.sum()))(box)))
say("chunks", lambda: parts(vmap(lambda x: Box(x.a * 2, x.b.sum()), chunk_size=3)(box)))
say("dims", lambda: vmap(lambda x, y: x.a @ x.b.mT @ y, in_dims=(Box(0, None), 0))(box, torch.ones(4, 4)))
say("grad", lambda: parts(grad(lambda x: (x.a * x.b ** 2).sum())(box)))
say("jacrev", lambda: parts(jacrev(lambda x: x.a.sum(1) * x.b.sum(1))(box)))
say("jvp", lambda: jvp(lambda x: (x.a * x.b).sum(), (box,), (Box(box.b, box.a),)))
say("vjp", lambda: parts(vjp(lambda x: (x.a * x.b).sum(1), box)[1](torch.ones(4))[0]))
""", tolerance=1e-5)


def test_pytrees_as_torch_walks_them():
    """Dicts in their own order; paths; registered twice."""
    beside_torch("""
import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from torch.utils import _pytree as pytree
Pair = namedtuple("Pair", "x y")
tree = {"z": [1, {"y": 2, "c": 3.5}], "a": (4, Pair(5, OrderedDict(q=6, b=None))), "m": defaultdict(list, k=7)}
say("leaves", lambda: [pytree.tree_leaves(tree), list(pytree.tree_iter(tree)), pytree.arg_tree_leaves(tree, 8, k=[9])])
say("paths", lambda: [[pytree.keystr(path), value] for path, value in pytree.tree_flatten_with_path(tree)[0]])
say("found by path", lambda: [pytree.key_get(tree, path) == value for path, value in pytree.tree_leaves_with_path(tree)])
say("mapped", lambda: pytree.tree_map_with_path(lambda path, x, y: [pytree.keystr(path), x, y], {"b": 1, "a": [2]}, {"b": 3, "a": [4]}))
say("structure", lambda: [pytree.tree_structure(tree).num_leaves, pytree.tree_structure(3).is_leaf()])
say("asked", lambda: [pytree.tree_all(lambda x: x, [1, 2]), pytree.tree_any(lambda x: x > 2, [1, 2]),
                      pytree.tree_all_only(int, lambda x: x > 3, [4, 1.5]), pytree.tree_any_only(float, lambda x: x > 3, [4, 1.5])])
seen = []
say("as it is", lambda: [pytree.tree_map_(seen.append, tree) is tree, seen, pytree.tree_map_only_(int, seen.append, [1, 2.5]), seen])
say("some", lambda: [pytree.tree_map_only(int, lambda x: x + 1, [1, 2.5]), pytree.tree_map_only(lambda x: x == 1, lambda x: x + 1, [1, 2])])
class Box:
    def __init__(self, a):
        self.a = a
register = lambda: pytree.register_pytree_node(Box, lambda x: ([x.a], None), lambda parts, _: Box(*parts))
register()
say("twice", register)
say("no keys", lambda: type(pytree.tree_flatten_with_path(Box(1))))
@dataclasses.dataclass
class Point:
    x: object
    y: object = None
    z: int = 3
pytree.register_dataclass(Point, field_names=["x", "y"], drop_field_names=["z"])
say("fields", lambda: [pytree.tree_leaves(Point(1, 2)), pytree.tree_leaves(Point(1)), pytree.tree_map(lambda v: v + 1, Point(1)).x,
                       [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path([Point(1, 2)])]])
""")
