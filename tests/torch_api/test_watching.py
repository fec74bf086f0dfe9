"""What watches programs written for torch: hooks of all modules, of saved tensors and of several gradients, and counts; beside torch."""

from __future__ import annotations

import pytest

from tests.torch_api.both import beside_torch
from tests.torch_api.test_hook import program

NET = """
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4), nn.LayerNorm(4),
                    nn.GELU(), nn.Linear(4, 3))
images, labels = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
"""


def test_hooks_of_all_modules():
    """They come before a module's own, and go by their handles."""
    beside_torch("""
from torch import nn
from torch.nn.modules import module as M
def run():
    log = []
    note = lambda word: lambda module, *rest: log.append((word, type(module).__name__))
    handles = [M.register_module_parameter_registration_hook(lambda m, name, p: log.append(name)),
               M.register_module_buffer_registration_hook(lambda m, name, b: torch.full((1,), 3.0) if name == "b" else None),
               M.register_module_module_registration_hook(lambda m, name, part: log.append(name))]
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    net.register_buffer("b", torch.zeros(1))
    for handle in handles:
        handle.remove()
    net.extra = nn.Identity()
    net[0].register_forward_pre_hook(note("own pre"))
    net[0].register_forward_hook(note("own"))
    net[0].register_full_backward_hook(note("own backward"))
    handles = [M.register_module_forward_pre_hook(note("pre")), M.register_module_full_backward_hook(note("backward")),
               M.register_module_full_backward_pre_hook(note("backward pre")),
               M.register_module_forward_hook(lambda m, args, kwargs, out: log.append((len(args), list(kwargs))), with_kwargs=True)]
    double = M.register_module_forward_hook(lambda m, args, out: 2 * out if isinstance(m, nn.Identity) else None)
    x = torch.ones(1, 2, requires_grad=True)
    y = net(x)
    y.sum().backward()
    double.remove()
    for handle in handles:
        handle.remove()
    count = len(log)
    net.extra(net[1](x)).sum().backward()
    return log, count == len(log), net.b, y.shape
say("all", run)
def fails():
    log = []
    class Bad(nn.Module):
        def forward(self, x):
            raise ValueError
    with M.register_module_forward_hook(lambda m, args, out: log.append(out), always_call=True):
        try:
            Bad()(1)
        except ValueError:
            log.append("raised")
    return log
say("always called", fails)
""")


def test_traced_functions_see_hooks_of_all_modules_come_and_go():
    program("""
        import torch
        from torch import nn
        from torch.nn.modules.module import register_module_forward_hook
        layer = nn.Linear(2, 2)
        f = torch.compile(lambda x: layer(x))
        x = torch.ones(1, 2)
        plain = [f(x) for _ in range(3)][-1]
        handle = register_module_forward_hook(lambda module, args, out: out + 1)
        assert all(torch.equal(f(x), plain + 1) for _ in range(3))
        handle.remove()
        assert all(torch.equal(f(x), plain) for _ in range(3))
    """)


def test_hooks_of_several_gradients():
    beside_torch("""
from torch.autograd.graph import register_multi_grad_hook
def run(mode):
    a, b = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)
    c, d = a * b, a * b
    found = []
    handle = register_multi_grad_hook((a, b, c, d), lambda g: found.append([x is not None for x in g] if mode == "all" else g.shape),
                                      mode=mode)
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c + d).sum().backward(retain_graph=True)
    (a * 2).sum().backward()
    handle.remove()
    c.sum().backward()
    return found
say("all", lambda: run("all"))
say("any", lambda: run("any"))
def values():
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = a * 3
    found = []
    register_multi_grad_hook((a, b), lambda grads: found.append(grads))
    (b * b).sum().backward()
    return found
say("values", values)
def refused():
    try:
        register_multi_grad_hook((torch.ones(1, requires_grad=True),), print, mode="some")
    except ValueError:
        return True
say("mode", refused)
""")


def test_saved_tensors_are_packed_and_unpacked():
    """Where both libraries save the same: what comes when, what a derivative reads, and errors."""
    beside_torch("""
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
def run(function, *values):
    log = []
    def pack(x):
        log.append(["pack", x, x.requires_grad, x.is_leaf, torch.is_grad_enabled()])
        return x.detach().clone()
    def unpack(x):
        log.append(["unpack", x, torch.is_grad_enabled()])
        return x * 10
    inputs = [torch.tensor(v, requires_grad=True) for v in values]
    with saved_tensors_hooks(pack, unpack):
        y = function(*inputs)
    between = len(log)
    y.sum().backward()
    return sorted(log[:between], key=str), sorted(log[between:], key=str), [x.grad for x in inputs]
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return y
    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * (x + y)
say("mul", lambda: run(lambda a, b: a * b, [2.0, 3.0], [4.0, 5.0]))
say("add", lambda: run(lambda a, b: a + b, [2.0, 3.0], [4.0, 5.0]))
say("square", lambda: run(lambda a: a * a, [2.0, 3.0]))
say("exp", lambda: run(lambda a: (a * 1).exp(), [2.0, 3.0]))
say("sin", lambda: run(lambda a: a.sin(), [2.0, 3.0]))
say("product", lambda: run(lambda a, b: a @ b, [[2.0, 3.0]], [[1.0], [2.0]]))
say("of data", lambda: run(lambda a: a * torch.tensor([1.0, 2.0]), [2.0, 3.0]))
say("custom", lambda: run(Square.apply, [2.0, 3.0]))
def several_times():
    "Calls and backwards that came before are not recalled."
    found = []
    for k in range(6):
        a = torch.tensor([2.0], requires_grad=True)
        b = a * 1
        if k % 2:
            y = b * b
        else:
            with saved_tensors_hooks(lambda x: x, lambda x: x * 0):
                y = b * b
        y.backward()
        found.append(a.grad)
    return found
say("several times", several_times)
def second():
    a = torch.tensor([5.0], requires_grad=True)
    with saved_tensors_hooks(lambda x: x * 2, lambda x: x):
        y = a * a
    g, = torch.autograd.grad(y, a, create_graph=True)
    return g, torch.autograd.grad(g, a)
say("second", second)
def nested():
    names = []
    x = torch.ones(1, requires_grad=True)
    with saved_tensors_hooks(lambda x: names.append("outer"), lambda x: x):
        with saved_tensors_hooks(lambda x: names.append("inner"), lambda x: x):
            x.sin()
        x.sin()
        with torch.no_grad():
            x.sin()
    x.sin()
    return names
say("nested", nested)
def errors():
    found = []
    x = torch.ones(2, requires_grad=True)
    def attempt(enter, call):
        try:
            with enter():
                y = x.sin()
            call(y)
        except (RuntimeError, TypeError) as error:
            found.append([isinstance(error, RuntimeError), isinstance(error, TypeError), str(error) == "no"])
    attempt(lambda: saved_tensors_hooks(lambda x: x, lambda x: 3), lambda y: y.sum().backward())
    attempt(lambda: saved_tensors_hooks(lambda x: x.add_(1), lambda x: x), lambda y: None)
    with disable_saved_tensors_hooks("no"):
        attempt(lambda: saved_tensors_hooks(lambda x: x, lambda x: x), lambda y: None)
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        attempt(lambda: disable_saved_tensors_hooks("no"), lambda y: None)
    return [f[1:] for f in found]
say("errors", errors)
""", 1e-6)


def test_packed_gradients_of_a_network_are_the_same_bits():
    """Through NumPy's arrays and back; each tensor that was packed is unpacked once, and let go of."""
    program("import torch\n" + NET + """
import gc, weakref
from torch.autograd.graph import saved_tensors_hooks
class Held:
    def __init__(self, x):
        self.array = x.numpy() if not x.requires_grad else x.detach().numpy()
held, unpacked = [], []
def pack(x):
    made = Held(x)
    held.append(weakref.ref(made))
    return made
def unpack(packed):
    unpacked.append(1)
    return torch.from_numpy(packed.array)
def gradients(hooked):
    net.zero_grad()
    if hooked:
        with saved_tensors_hooks(pack, unpack):
            loss = nn.functional.cross_entropy(net(images), labels)
    else:
        loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    if hooked:
        gc.collect()
        assert not any(ref() for ref in held)                   # though the loss is there
    return [p.grad.clone() for p in net.parameters()]
plain = gradients(False)
for _ in range(3):
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients(True)))
assert len(held) == len(unpacked) > 30
try:
    with saved_tensors_hooks(lambda x: x, lambda x: x.flatten()[:1]):
        y = net(images)
    y.sum().backward()
except ValueError as error:
    assert "unpack_hook returned a tensor of shape (1,)" in str(error)
else:
    raise AssertionError
""")


COUNTS = """
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
def counts(run, **options):
    with FlopCounterMode(display=False, **options) as mode:
        run()
    return {k: {str(op): n for op, n in v.items()} for k, v in mode.get_flop_counts().items()}, mode.get_total_flops()
"""


def test_flops_of_operations_and_modules():
    beside_torch(COUNTS + """
def grads(*shape):
    return torch.randn(*shape, requires_grad=True)
for name, run in {
    "linear": lambda: nn.Linear(4, 5)(grads(2, 3, 4)).sum().backward(),
    "without a bias": lambda: nn.Linear(4, 5, bias=False)(torch.randn(2, 4)).sum().backward(),
    "products": lambda: (grads(2, 3, 4) @ grads(2, 4, 5)).sum().backward(),
    "of one": lambda: (torch.randn(3, 4).mm(grads(4, 5))).sum().backward(),
    "addmm": lambda: torch.addmm(grads(3), grads(2, 4), grads(4, 3)).sum().backward(),
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 1, 3), grads(2, 2, 4), torch.ones(2, 4, 3)).sum().backward(),
    "equal ones": lambda: [torch.ones(3, 3) @ torch.ones(3, 3) for _ in range(3)],
    "conv1d": lambda: nn.Conv1d(4, 6, 3, groups=2)(grads(2, 4, 9)).sum().backward(),
    "conv2d": lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1)(torch.randn(2, 3, 7, 8)).sum().backward(),
    "conv3d": lambda: nn.Conv3d(2, 3, (2, 3, 3), padding=1)(grads(2, 2, 4, 5, 6)).sum().backward(),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2)(grads(2, 4, 5, 5)).sum().backward(),
    "attention": lambda: nn.MultiheadAttention(16, 4)(*[torch.randn(5, 2, 16)] * 3)[0].sum().backward(),
    "masked": lambda: F.scaled_dot_product_attention(*[grads(2, 3, 8, 16)] * 3, dropout_p=0.1).sum().backward(),
}.items():
    say(name, lambda: counts(run))
def second():
    x = grads(3, 3)
    g, = torch.autograd.grad((x @ x).sum(), x, create_graph=True)
    g.square().sum().backward()
say("second", lambda: counts(second))
net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()),
                    nn.Linear(64, 4))
def steps():
    for _ in range(4):
        net(torch.randn(2, 1, 8, 8)).sum().backward()
say("steps", lambda: counts(steps))
with torch.no_grad():
    say("no grad", lambda: counts(lambda: [net(torch.randn(2, 1, 8, 8)) for _ in range(4)]))
say("nothing", lambda: counts(lambda: torch.ones(3).sin()))
""")


def test_a_table_of_flops():
    said = program("""
        import torch
        from torch import nn
        from torch.utils.flop_counter import FlopCounterMode
        net = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 3))
        with FlopCounterMode(depth=2) as mode:
            net(torch.randn(5, 100))
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert mode.get_total_flops() == 2 * 5 * 200 * 103 + 16
        assert net(torch.randn(5, 100)).shape == (5, 3) and mode.get_total_flops() == 2 * 5 * 200 * 103 + 16
        q = torch.randn(2, 3, 8, 16, requires_grad=True)
        with FlopCounterMode(display=False) as mode:                # torch's count of its operation on GPUs; on CPUs it has none
            nn.functional.scaled_dot_product_attention(q, q * 1, q * 2, is_causal=True).sum().backward()
        assert mode.get_total_flops() == 7 * 2 * 2 * 3 * 8 * 8 * 16
    """)
    assert [line.split() for line in said.splitlines() if "aten" not in line] == [
        ["Module", "FLOP", "%", "Total"], ["Global", "206.016K", "100.00%"], ["Sequential", "206.000K", "99.99%"],
        ["Sequential.0", "200.000K", "97.08%"], ["Sequential.2", "6.000K", "2.91%"]]


@pytest.mark.long
def test_flops_of_a_residual_network_and_a_transformer_block():
    """The shapes of timm's ResNet18 and of GPT-2's block, written out."""
    beside_torch(COUNTS + """
class Block(nn.Module):
    def __init__(self, c, d, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, d, 3, stride, 1, bias=False), nn.BatchNorm2d(d)
        self.conv2, self.bn2 = nn.Conv2d(d, d, 3, 1, 1, bias=False), nn.BatchNorm2d(d)
        self.down = nn.Sequential(nn.Conv2d(c, d, 1, stride, bias=False), nn.BatchNorm2d(d)) if stride > 1 else nn.Identity()
    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.down(x))
class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [64, 64, 128, 256, 512]
        self.layers = nn.Sequential(*(nn.Sequential(Block(a, b, 1 if a == b else 2), Block(b, b, 1)) for a, b in zip(widths, widths[1:])))
        self.fc = nn.Linear(512, 1000)
    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))
class GPT2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.up, self.down = (nn.Parameter(torch.randn(a, b) * 0.02) for a, b in (
            (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)))
    def product(self, x, w):
        return torch.addmm(torch.zeros(w.shape[1]), x.view(-1, x.size(-1)), w).view(*x.shape[:-1], -1)
    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.product(self.ln1(x), self.qkv).split(c, 2))
        w = torch.matmul(q, k.transpose(-1, -2)) / q.size(-1) ** 0.5
        w = w.masked_fill(torch.ones(t, t).triu(1).bool(), -float("inf")).softmax(-1)
        x = x + self.product(torch.matmul(w, v).transpose(1, 2).reshape(n, t, c), self.out)
        return x + self.product(F.gelu(self.product(self.ln2(x), self.up)), self.down)
resnet, block = ResNet18(), GPT2Block(96, 4)
def all_of(run):
    found, total = counts(run)                      # (torch gives what goes back by a skip to the modules beside it)
    return found["Global"], total
say("resnet", lambda: all_of(lambda: resnet(torch.randn(2, 3, 64, 64)).sum().backward()))
say("block", lambda: all_of(lambda: block(torch.randn(2, 16, 96, requires_grad=True)).sum().backward()))
with torch.no_grad():
    say("forward", lambda: counts(lambda: resnet(torch.randn(2, 3, 64, 64))))
""")


def test_swapped_tensors():
    beside_torch("""
from torch import nn
def swapped():
    a, b = nn.Parameter(torch.tensor([1.0, 2.0])), torch.tensor([[3, 4]])
    a.tag = 5
    (a * 2).sum().backward()
    torch.utils.swap_tensors(a, b)
    return a, b, type(a).__name__, type(b).__name__, b.tag, hasattr(a, "tag"), b.grad, a.grad
say("swapped", swapped)
def in_a_layer():
    layer, w = nn.Linear(2, 1, bias=False), nn.Parameter(torch.tensor([[5.0, 6.0]]))
    torch.utils.swap_tensors(layer.weight, w)
    del w
    found = []
    for _ in range(4):
        layer.zero_grad()
        layer(torch.tensor([[1.0, 2.0]])).sum().backward()
        found.append(layer.weight.grad)
    return layer.weight, found, layer.weight.is_leaf
say("in a layer", in_a_layer)
""")
