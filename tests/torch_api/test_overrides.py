"""`__torch_function__`, subclasses of Tensor and modes under the hook, beside torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch

CLASSES = """
import copy, operator, pickle
import torch.nn.functional as F
from torch import nn
log = []
class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        log.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)
class Plain(torch.Tensor):
    pass
class Other:
    "No tensor."
    def __init__(self, value):
        self.value = value
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED:
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))
HANDLED = {torch.add: lambda x, y: ("add", y.value),
    torch.Tensor.add: lambda x, y: ("method", x.value if isinstance(x, Other) else y.value),
           F.relu: lambda x, inplace=False: ("relu", x.value),
    torch.cat: lambda xs: ("cat", len(xs)), torch.matmul: lambda x, y: "product",
           F.linear: lambda x, w, b: ("linear", x.value), torch.mean: lambda x: "mean", nn.init.normal_: lambda *rest, **more: "drawn",
           torch.linalg.norm: lambda x: "norm"}
torch.manual_seed(0)
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
def kind(value):
    return [kind(v) for v in value] if isinstance(value, (tuple, list)) else type(value).__name__
"""


def test_results_are_of_the_subclass():
    beside_torch(CLASSES + """
t = x.as_subclass(Plain)
calls = dict(
    add=lambda: t + 1, radd=lambda: 1 + t, both=lambda: x + t, sub=lambda: t - x, rsub=lambda: 1 - t, matmul=lambda: x @ t,
    div=lambda: 2 / t,
    power=lambda: 2 ** t, neg=lambda: -t, eq=lambda: t == 1, less=lambda: t < x, whole=lambda: t // 2, index=lambda: t[0],
    rows=lambda: list(t),
    method=lambda: x.add(t), function=lambda: torch.add(x, t), cat=lambda: torch.cat([x, t]), stack=lambda: torch.stack((t, x)),
    relu=lambda: F.relu(t), linear=lambda: nn.Linear(2, 2)(t), norm=lambda: nn.BatchNorm1d(2)(t), loss=lambda: F.mse_loss(t, x),
    shape=lambda: t.shape, transposed=lambda: t.T, data=lambda: t.data, detached=lambda: t.detach(), total=lambda: t.sum(),
    parts=lambda: t.split(1), length=lambda: len(t), number=lambda: t.sum().item(), array=lambda: t.numpy(),
    zeros=lambda: torch.zeros_like(t),
    new=lambda: t.new_zeros(2), other=lambda: t.to(torch.float64), where=lambda: torch.where(t > 0, t, x), best=lambda: list(t.max(0)),
    named=lambda: torch.add(input=x, other=t), equal=lambda: torch.equal(t, x), plain=lambda: torch.tensor(t),
    same=lambda: torch.as_tensor(t),
    einsum=lambda: torch.einsum("ij->i", t), norms=lambda: torch.linalg.norm(t), inverse=lambda: ~(t > 0),
    written=lambda: t.clone().add_(1),
    out=lambda: torch.add(x, x, out=t.clone()), back=lambda: t.as_subclass(torch.Tensor), made=lambda: Plain([1.0, 2.0]),
    sized=lambda: Plain(2, 3).shape,
    wrapped=lambda: Plain(x), pickled=lambda: pickle.loads(pickle.dumps(t)), copied=lambda: copy.copy(t), text=lambda: repr(t),
    meta=lambda: t.dtype)
def found(call):
    value = call()
    return kind(value), value if not isinstance(value, torch.Size) and "array" not in kind(value) else list(value)
for name, call in calls.items():
    say(name, lambda: found(call))
def gradients():
    a = x.clone().requires_grad_()
    b = a.as_subclass(Plain)
    loss = (b * b).sum()
    loss.backward()
    c = torch.ones(2).as_subclass(Plain).requires_grad_()
    d, = torch.autograd.grad((c * c).sum(), c)
    return kind([loss, a.grad, c, d]), a.grad, c.is_leaf, b.is_leaf, d
say("gradients", gradients)
def shared():
    a = torch.zeros(3)
    b = a.as_subclass(Plain)
    b.add_(1)
    a[0] = 5
    return a, b, b.is_leaf
say("shared", shared)
""", 1e-6)


def test_functions_come_to_the_class():
    """By torch's names; what packages build on: units, metadata, masks."""
    beside_torch(CLASSES + """
t = x.as_subclass(Logged)
calls = dict(
    add=lambda: t + 1, radd=lambda: 1 + t, both=lambda: x + t, sub=lambda: t - x, product=lambda: x @ t, div=lambda: t / 2,
    less=lambda: t < x,
    written=lambda: operator.iadd(t, 1), index=lambda: t[0], put=lambda: operator.setitem(t, 0, 1.0), method=lambda: x.add(t),
    function=lambda: torch.add(x, t), cat=lambda: torch.cat([x, t]), relu=lambda: nn.ReLU()(t), linear=lambda: nn.Linear(2, 2)(t),
    loss=lambda: nn.MSELoss()(t, x), total=lambda: t.sum(), reduced=lambda: torch.sum(t),
    cross=lambda: F.cross_entropy(t, torch.tensor([0, 1])),
    max=lambda: t.max(), length=lambda: len(t), number=lambda: t[0, 0].item(), true=lambda: bool(t[0, 0]), shape=lambda: t.shape,
    data=lambda: t.data, grad=lambda: t.grad, dropout=lambda: nn.Dropout(0.5)(t), where=lambda: torch.where(x > 0, t, x),
    exp=lambda: t.exp(),
    mean=lambda: t.mean(0, keepdim=True), view=lambda: t.view(4), changed=lambda: t.to(torch.float64), double=lambda: t.double(),
    text=lambda: repr(t), softmax=lambda: F.softmax(t, 0), flat=lambda: t.reshape(-1))
def seen(call):
    log.clear()
    call()
    return list(log)
for name, call in calls.items():
    say(name, lambda: seen(call))
class Meters(torch.Tensor):
    "A tensor with attributes of its own, made by a constructor of its own."
    def __new__(cls, data, unit, *args, **kwargs):
        return super().__new__(cls, data, *args, **kwargs)
    def __init__(self, data, unit):
        super().__init__()
        self.unit = unit
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        units = {a.unit for a in args if isinstance(a, Meters)}
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Meters):
            result.unit = units.pop()
        return result
def meters():
    a = Meters([1.0, 2.0], "m")
    b = torch.ones(2) * a.exp()[0]
    return kind(b), b.unit, b, a.unit, kind(a.sum()), a.sum().unit
say("meters", meters)
class Own(torch.Tensor):
    "As programs did before __torch_function__: _make_subclass."
    @staticmethod
    def __new__(cls, data, extra, requires_grad=False):
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.extra = extra
        return made
    __torch_function__ = torch._C._disabled_torch_function_impl
def own():
    a = Own(torch.ones(2), 3, True)
    (a * 2).sum().backward()
    return kind(a), a.extra, kind(a * 2), a.grad, a.is_leaf
say("own", own)
class Mine(nn.Parameter):
    def __new__(cls, data, requires_grad=True, tag=None):
        made = super().__new__(cls, data, requires_grad)
        made.tag = tag
        return made
def parameters():
    layer = nn.Linear(2, 2)
    layer.weight = Mine(torch.eye(2), tag="w")
    layer(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.5).step()
    return kind(layer.weight), layer.weight.tag, layer.weight, kind(layer.weight * 2), len(list(layer.parameters()))
say("parameters", parameters)
""", 1e-6)


def test_other_classes_come_to_their_own():
    beside_torch(CLASSES + """
p = Other(5)
calls = dict(
    add=lambda: torch.add(x, p), cat=lambda: torch.cat([x, p]), relu=lambda: F.relu(p), linear=lambda: nn.Linear(2, 2)(p),
    mean=lambda: torch.mean(p),
    product=lambda: torch.matmul(x, p), method=lambda: x.add(p), sum=lambda: x + p, turned=lambda: p + x,
    drawn=lambda: nn.init.normal_(p),
    norm=lambda: torch.linalg.norm(p))
for name, call in calls.items():
    say(name, call)
def missing():
    try:
        torch.exp(p)
    except TypeError as error:
        return "exp" in str(error), "__torch_function__" in str(error)
say("missing", missing)
from torch.overrides import handle_torch_function, has_torch_function, is_tensor_like
def mine(a):
    if has_torch_function((a,)):
        return handle_torch_function(mine, (a,), a)
    return "plain"
HANDLED[mine] = lambda a: ("handled", a.value)
say("handled", lambda: (mine(p), mine(x), is_tensor_like(p), is_tensor_like(x), is_tensor_like(3), has_torch_function((x, 1))))
class Above(Other):
    pass
HANDLED[torch.sub] = lambda a, b: type(b).__name__
say("subclass", lambda: (torch.sub(p, Above(1)), torch.add(x, Above(3))))
""")


def test_modes_see_every_call():
    beside_torch(CLASSES + """
from torch.overrides import TorchFunctionMode
class Log(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))
class Twice(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.add, torch.Tensor.add, torch.ones) else result
def logged():
    with Log() as log:
        y = torch.ones(2)
        y = y + 1
        y.exp().sum()
        F.relu(y)
    return log.seen, torch.ones(2) + 1
say("logged", logged)
def twice():
    with Twice():
        y = torch.ones(2) + 1
        with Log() as log:
            z = torch.add(y, 1)
        with torch._C.DisableTorchFunction():
            w = y + 1
    return y, z, w, log.seen
say("twice", twice)
""")


WRAPPER = """
from torch.utils import _pytree as pytree
log = []
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        made = torch.Tensor._make_wrapper_subclass(cls, size=data.size(), strides=data.stride(), dtype=data.dtype, device=data.device,
                                                   layout=data.layout, requires_grad=False)
        made.held = data
        return made
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        shown = pytree.tree_map(lambda x: type(x).__name__ if isinstance(x, torch.Tensor) else repr(x), args)
        log.append([str(func), shown, sorted(kwargs or {}), [t.__name__ for t in types]])
        if func is torch.ops.aten.cat.default or func == torch.ops.aten.clone.default:
            args = pytree.tree_map_only(Wrapper, lambda x: x.held, args)
            return Wrapper(func(*args))
        args, kwargs = pytree.tree_map_only(Wrapper, lambda x: x.held, (args, kwargs or {}))
        return func(*args, **kwargs)
    def __repr__(self):
        return f"Wrapper({torch._tensor_str._tensor_str(self.held, 8)}"
def kept(value):
    if isinstance(value, Wrapper):
        return ["wrapper", value.held]
    return [kept(v) for v in value] if isinstance(value, (list, tuple)) else value
def told(call):
    log.clear()
    result = kept(call())
    return [result, list(log)]
def fresh():
    return Wrapper(torch.tensor([[3, 1, 2, 2], [0, 2, 1, 3]])), Wrapper(torch.tensor([2, 0, 1]))
x, i = fresh()
some, mask, plain = torch.tensor([1, 0]), torch.tensor([True, False, True]), torch.arange(10.0).view(5, 2)
"""


def test_operators_of_tensors_that_wrap_others_go_to_their_class():
    beside_torch(WRAPPER + """
calls = dict(
    clone=lambda: x.clone(), to=lambda: x.to(torch.int32), same=lambda: x.to("cpu") is x, long=lambda: x.long() is x,
    int=lambda: x.int(), float=lambda: i.float(), cpu=lambda: x.cpu() is x, row=lambda: x[0], both=lambda: x[0, 1],
    part=lambda: x[:, 1:3], last=lambda: x[..., 0], new=lambda: i[None], two=lambda: i[:2], all=lambda: i[:], step=lambda: i[::2],
    end=lambda: i[-2:], some=lambda: i[some], mask=lambda: i[mask], columns=lambda: x[:, some], listed=lambda: i[[0, 2]],
    index=lambda: plain[i], select=lambda: x.select(0, 1), narrow=lambda: x.narrow(1, 1, 2), unbind=lambda: x.unbind(),
    unbind1=lambda: x.unbind(1), unpacked=lambda: [*x], picked=lambda: x.index_select(1, some), picks=lambda: plain.index_select(0, i),
    flip=lambda: x.flip(0), flips=lambda: x.flip([0, 1]), cat=lambda: torch.cat([i, i]), cat1=lambda: torch.cat([x, x], dim=1),
    sort=lambda: i.sort(), down=lambda: i.sort(descending=True), stable=lambda: torch.sort(i, stable=True), add=lambda: i + 1,
    radd=lambda: 1 + i, twice=lambda: i + i, alpha=lambda: torch.add(i, 2, alpha=3), sub=lambda: i - 1, mul=lambda: i * 2,
    sum=lambda: i.sum(), max=lambda: i.max(), less=lambda: i < 2, equal=lambda: i == i, stack=lambda: torch.stack([i, i]),
    turned=lambda: x.t(), view=lambda: x.view(-1), expand=lambda: i.expand(2, 3), number=lambda: i[0].item(), truth=lambda: bool(i[0]),
    known=lambda: [x.numel(), x.size(), x.size(0), x.shape, x.dim(), len(x), str(x.dtype), str(x.device), x.requires_grad, x.data_ptr()],
    scattered=lambda: torch.zeros(4).scatter_add_(0, i, torch.ones(3)), product=lambda: Wrapper(torch.ones(2, 2)) @ torch.ones(2, 2))
for name, call in calls.items():
    say(name, lambda: told(call))
say("text", lambda: [str(i), repr(i)])
""")


def test_tensors_that_wrap_others_in_place_and_in_functions():
    beside_torch(WRAPPER + """
say("add_", lambda: [i.add_(1) is i, i.held])
i -= 1
say("sub_", lambda: [type(i).__name__, i.held])
out = torch.zeros(6, dtype=torch.int64)
say("out", lambda: [torch.cat([i, i], out=out).tolist(), log[-1][0]])
say("no out", lambda: [type(torch.cat([i, i], out=None)).__name__, log[-1][0]])
class Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, places):
        ctx.save_for_backward(places)
        return values[places.held]
    @staticmethod
    def backward(ctx, g):
        places, = ctx.saved_tensors
        return torch.zeros(5, 2).index_add(0, places.held, g), None
values = plain.clone().requires_grad_()
Picked.apply(values, i).sum().backward()
say("gradient", lambda: values.grad)
def refused():
    try:
        torch.Tensor._make_wrapper_subclass(torch.Tensor, (2,))
    except Exception:
        return True
say("refused", refused)
""")


def test_subclasses_with_a_method_of_their_own_named_wrap():
    """torchvision's BoundingBoxes has one."""
    beside_torch("""
class Boxes(torch.Tensor):
    @classmethod
    def _wrap(cls, tensor, *, format):
        found = tensor.as_subclass(cls)
        found.format = format
        return found
boxes = Boxes._wrap(torch.arange(8.0).reshape(2, 4), format="XYXY")
def kinds():
    return [type(x).__name__ for x in (boxes + 1, boxes.clone(), boxes.to(torch.float64), boxes[0], torch.cat([boxes, boxes]))]
say("kinds", kinds)
say("format", lambda: boxes.format)
say("values", lambda: (boxes.double() * 2).tolist())
""")
