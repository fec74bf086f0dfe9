"""What programs written for torch do with tensors, Functions and optimizers, beside torch."""

from __future__ import annotations

import pytest

from tests.torch_api.both import beside_torch
from tests.torch_api.test_hook import program


def test_writes_under_no_grad():
    beside_torch("""
def run(write):
    x = torch.arange(1.0, 6, requires_grad=True)
    y = x * 2
    write(y)
    (y * y * x).sum().backward()
    return y, x.grad, y.requires_grad, y.is_leaf
def under_no_grad(change):
    def write(y):
        with torch.no_grad():
            change(y)
    return write
say("all", lambda: run(under_no_grad(lambda y: y.add_(1))))
say("view", lambda: run(under_no_grad(lambda y: y[1:3].mul_(3))))
say("detach", lambda: run(lambda y: y.detach().zero_()))
say("data", lambda: run(lambda y: y.data.fill_(2)))
say("out", lambda: run(under_no_grad(lambda y: torch.mul(y, 3, out=y))))
""")


def test_functions_get_the_leaves_that_were_saved():
    beside_torch("""
from torch import nn
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, *parameters):
        ctx.function = function
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return function(x)
    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        assert all(p.is_leaf and p.requires_grad for p in parameters)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.function(x)
            return None, *torch.autograd.grad(y, (x, *parameters), grad)
def run():
    layer = nn.Linear(2, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).reshape(3, 2))
        layer.bias.fill_(0.5)
    found = []
    for iteration in range(5):
        x = torch.tensor([[1.0, 2.0]], requires_grad=True)
        layer.zero_grad()
        Checkpoint.apply(layer, x, *layer.parameters()).square().sum().backward()
        found.append([x.grad, layer.weight.grad, layer.bias.grad])
    return found
say("gradients", run)
""")


def test_enable_grad_in_a_forward():
    """Adjoint methods differentiate in the forward of a Function (torchsde does); elsewhere in it nothing requires grad."""
    beside_torch("""
seen = []
w = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
class Newton(torch.autograd.Function):
    "x with x^2 = w, by steps that need a derivative."
    @staticmethod
    def forward(ctx, w):
        seen.append([torch.is_grad_enabled(), (w * 2).requires_grad])
        x = torch.ones_like(w)
        for _ in range(6):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                f = y * y - w.detach()
                seen.append([torch.is_grad_enabled(), y.requires_grad, f.requires_grad, f.is_leaf, f.grad_fn is None])
                outputs = [o if o.requires_grad else o.detach().requires_grad_() for o in (f,)]
                slope, = torch.autograd.grad(outputs, y, torch.ones_like(y))
            x = x - f.detach() / slope
        with torch.set_grad_enabled(True):
            seen.append([(y * 1).requires_grad, torch.is_grad_enabled()])
        seen.append([torch.is_grad_enabled(), x.requires_grad])
        ctx.save_for_backward(x)
        return x
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g / (2 * x)
def run():
    x = Newton.apply(w)
    x.sum().backward()
    return x, w.grad, seen, torch.is_grad_enabled(), (w * 1).requires_grad
say("newton", run)
""", 1e-6)


def test_older_argument_orders_and_storages():
    beside_torch("""
x, y = torch.ones(2), torch.tensor([2.0, 3.0])
say("add", lambda: x.clone().add_(2, y))
say("sub", lambda: x.sub(2, y))
say("addcmul", lambda: x.clone().addcmul_(2, y, y))
say("addcdiv", lambda: x.addcdiv(3, x, y))
say("addmm", lambda: torch.eye(2).addmm(2, 3, torch.eye(2), torch.ones(2, 2)))
say("plain", lambda: (x.add(y, alpha=3), x.add(1), x.addcmul(y, y, value=2)))
say("new", lambda: (x.new(2, 3).shape, x.new([1, 2]), x.long().new([5]).dtype == torch.int64, x.new(torch.Size([4])).numel(),
                    x.new().numel()))
z = torch.arange(6.0).reshape(2, 3)
say("pointers", lambda: (z.data_ptr() == z.view(-1).data_ptr(), z[1].data_ptr() - z.data_ptr(), z[0].data_ptr() == z.data_ptr(),
                         z.data_ptr() == z.clone().data_ptr(), z.detach().data_ptr() == z.data_ptr(), z[:, 1].data_ptr() - z.data_ptr()))
say("storage", lambda: (z.untyped_storage().nbytes(), z.storage().size(), len(z[0].storage()), z[0].storage().tolist(),
                        z.untyped_storage().size(), z.untyped_storage().data_ptr() == z[1].untyped_storage().data_ptr()))
def own():
    x.tag = 5
    x.more = [1]
    return x.tag, x.more, hasattr(y, "tag")
import ctypes
def at(x):
    "The floats at the address of a tensor."
    return list((ctypes.c_float * x.numel()).from_address(x.data_ptr()))
def addresses():
    first = z.data_ptr(), at(z), at(z[1])
    z.add_(1)
    return z.data_ptr() == first[0], first[1:], at(z), torch.empty(0).data_ptr(), torch.ones(2, device="meta").data_ptr()
say("addresses", addresses)
def file():
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/f", "wb") as f:
            f.write(bytes(range(16)))
        s = torch.UntypedStorage.from_file(f"{folder}/f", False, 16)
        return len(s), s[3], torch.asarray(s[4:12], dtype=torch.uint8).view(dtype=torch.int32).reshape((2, 1)), len(torch.UntypedStorage(3))
import tempfile
say("file", file)
say("attributes", own)
say("device", lambda: (str(x.device), f"{torch.device('cpu')}", torch.device("meta").type))
say("state", lambda: type(torch.nn.Linear(1, 1).state_dict()).__name__)
""")


def test_older_names():
    beside_torch("""
from torch import nn
say("range", lambda: (torch.range(1, 4), torch.range(0, 1, 0.25), torch.range(1, 2, dtype=torch.int64).dtype))
def default():
    torch.set_default_tensor_type(torch.DoubleTensor)
    kind = torch.ones(1).dtype
    torch.set_default_tensor_type("torch.FloatTensor")
    return kind, torch.ones(1).dtype
say("default", default)
def drawn(name, *args):
    torch.manual_seed(0)
    return getattr(nn.init, name)(torch.empty(4, 3), *args)
for name, args in dict(constant=(2.0,), uniform=(), normal=(), xavier_uniform=(), kaiming_normal=(), eye=(), orthogonal=()).items():
    say(name, lambda: drawn(name, *args))
x = torch.arange(6.0)
say("same", lambda: (x.is_set_to(x), x.is_set_to(x.detach()), x.is_set_to(x[1:]), x.to_dense(), x.share_memory_() is x))
say("symbols", lambda: (torch.sym_not(3), torch.sym_ite(True, 1, 2), torch.sym_sqrt(4), torch.sym_sum([1, 2])))
import copy, pickle
def own():
    x.tag = [1]
    a, b = copy.deepcopy(x), pickle.loads(pickle.dumps(x))
    p = nn.Parameter(x.clone())
    p.tag = 2
    return a.tag, a.tag is x.tag, b.tag, hasattr(copy.deepcopy(p), "tag"), pickle.loads(pickle.dumps(p)).tag
say("own", own)
""", 1e-6)


def test_an_optimizer_of_ones_own():
    beside_torch("""
class Own(torch.optim.Optimizer):
    def __init__(self, parameters, lr=None):
        self.lr = 0.1 if lr is None else lr
        super().__init__(parameters, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad)
                p.data.add_(-self.lr, state["m"])
def run():
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = Own([w])
    for _ in range(3):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
    return w, optimizer.state_dict()["state"][0]["m"]
say("steps", run)
""", 1e-6)


def test_mixed_precision_casts_what_torch_casts():
    """The dtypes of results for operands of float32, bfloat16, float64 and float16."""
    beside_torch("""
import torch.nn.functional as F
x = torch.rand(4, 4) + 0.1
labels = torch.tensor([0, 1, 2, 3])
calls = dict(
    matmul=lambda a: a @ a, mm=lambda a: torch.mm(a, a), mv=lambda a: torch.mv(a, a[0]), bmm=lambda a: torch.bmm(a[None], a[None]),
    addmm=lambda a: torch.addmm(a, a, a), baddbmm=lambda a: torch.baddbmm(a[None], a[None], a[None]), linear=lambda a: F.linear(a, a, a[0]),
    einsum=lambda a: torch.einsum("ij,jk", a, a), prelu=lambda a: F.prelu(a, a[0, :1]), tensordot=lambda a: torch.tensordot(a, a, 1),
    attention=lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]), conv=lambda a: F.conv2d(a[None, None], a[None, None]),
    transposed=lambda a: F.conv_transpose2d(a[None, None], a[None, None]), outer=lambda a: torch.outer(a[0], a[0]),
    softmax=lambda a: a.softmax(-1), layer_norm=lambda a: F.layer_norm(a, (4,)), exp=lambda a: a.exp(), sum=lambda a: a.sum(),
    prod=lambda a: a.prod(), cumsum=lambda a: a.cumsum(0), mse=lambda a: F.mse_loss(a, a),
    cross_entropy=lambda a: F.cross_entropy(a, labels),
    nll=lambda a: F.nll_loss(a, labels), kl=lambda a: F.kl_div(a, a), huber=lambda a: F.huber_loss(a, a), cdist=lambda a: torch.cdist(a, a),
    bce=lambda a: F.binary_cross_entropy_with_logits(a, a), trace=lambda a: a.trace(), inverse=lambda a: torch.linalg.inv(a),
    svd=lambda a: torch.linalg.svdvals(a), fft=lambda a: torch.fft.fft(a).real, relu=lambda a: a.relu(), mean=lambda a: a.mean(),
    attend=lambda a: torch.nn.MultiheadAttention(4, 2).to(a.dtype)(a[None], a[None], a[None])[0], add=lambda a: a + x,
    embedding=lambda a: F.embedding(labels, a))
def found(call):
    kinds = torch.float32, torch.bfloat16, torch.float64, torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        return [kinds.index(call(x.to(kind)).dtype) for kind in kinds]
for name, call in calls.items():
    say(name, lambda: found(call))
def modes():
    states = []
    for enabled in (True, False):
        with torch.autocast("cpu", enabled=enabled):
            states += [torch.is_autocast_enabled("cpu"), torch.is_autocast_cpu_enabled(), torch.get_autocast_dtype("cpu") == torch.bfloat16]
    return states
say("modes", modes)
def scaled():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    w = torch.nn.Parameter(torch.ones(2))
    optimizer, found = torch.optim.SGD([w], lr=0.1), []
    for factor in (1.0, float("inf"), 1.0, 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append([w.tolist(), scaler.get_scale()])
    return found, scaler.state_dict()
say("scaled", scaled)
""", 1e-6)


def test_dtypes():
    beside_torch("""
import copy, pickle
x = torch.ones(2)
names = "bfloat16 bits16 bool complex128 chalf cfloat float float64 half float8_e4m3fn int1 int8 long qint8 quint4x2 uint64"
for n in names.split():
    d = getattr(torch, n)
    say(n, lambda: (str(d), repr(d), d.is_floating_point, d.is_complex, d.itemsize, isinstance(d, torch.dtype),
                    pickle.loads(pickle.dumps(d)) is d, pickle.dumps(d, 2).decode("latin1"), copy.deepcopy(d) is d, d.to_real()))
    def signed():
        try:
            return d.is_signed
        except RuntimeError:
            return "no"
    def twice():
        try:
            return d.to_complex()
        except RuntimeError:
            return "no"
    say(n + " signed", lambda: (signed(), twice()))
    if n not in ("long", "bool") and not n.startswith(("u", "q", "b", "int", "c", "float8")):
        say(n + " limits", lambda: str(torch.finfo(d)))
say("float8", lambda: (str(torch.finfo(torch.float8_e4m3fn)), str(torch.iinfo(torch.int8)), torch.iinfo(torch.long).dtype))
say("identity", lambda: (x.dtype is torch.float32, torch.float is torch.float32, {torch.float32: 1}[x.dtype],
                         hash(torch.half) == hash(torch.float16), torch.float32 == "float32", torch.half == "auto", torch.half is None,
                         torch.float32 != torch.float64))
say("tensors", lambda: (x.to(torch.float64).dtype, x.view(torch.int32).dtype, x.type(torch.int16).dtype, (x.int() + x).dtype, x.type(),
                        torch.get_default_dtype(), torch.promote_types(torch.int32, torch.float16), torch.result_type(x, 2),
                        x.numpy().dtype, torch.zeros(2, dtype=torch.bfloat16).dtype, x.sum(dtype=torch.float64).dtype,
                        torch.empty_like(x, dtype=torch.int64).dtype))
say("modules", lambda: (torch.nn.Linear(2, 2).to(torch.float64).weight.dtype, torch.nn.Linear(2, 2).half().bias.dtype))
def default():
    torch.set_default_dtype(torch.float64)
    found = torch.ones(1).dtype, torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return found
say("default", default)
""")


def test_numpys_dtypes_are_equal_to_torchs():
    program("""
        import torch, numpy as np, tracegrad as tg
        x = torch.ones(2)
        assert x.dtype == np.float32 == torch.float32 == tg.float32 and np.dtype("float32") == x.dtype and x.dtype != np.float64
        assert np.zeros(2, torch.int16).dtype == np.int16 and np.dtype(x.dtype) is np.dtype("float32") and {tg.float32: 1}[x.dtype]
        assert str(x.numpy().dtype) == str(tg.float32) == "float32"
        assert x.dtype.kind == "f" and not hasattr(torch.qint8, "kind") and np.dtype("int8") != torch.qint8
        asked, slow = [], torch.dtype.__getattr__               # NumPy finds its dtype without a search that fails, which takes 4 us
        torch.dtype.__getattr__ = lambda self, name: asked.append(name) or slow(self, name)
        assert np.dtype("float32") == x.dtype and np.dtype("int8") != x.dtype and np.zeros(2, x.dtype).astype(torch.int8).sum() == 0
        assert not asked, asked
        y = x.to(torch.float64).to(x.dtype) + x.view(torch.int32).sum(dtype=x.dtype)
        assert isinstance(x._node().aval.dtype, np.dtype) and isinstance(y._node().aval.dtype, np.dtype)
        try:
            x.to(torch.qint8)
        except tg.TracegradError as error:
            assert "torch.qint8" in str(error)
        else:
            raise AssertionError
    """)


def test_samplers_for_several_processes():
    beside_torch("""
from torch.utils.data.distributed import DistributedSampler
def run(rank, **options):
    sampler = DistributedSampler(list(range(10)), 3, rank, **options)
    sampler.set_epoch(2)
    return len(sampler), list(sampler)
for rank in range(3):
    for options in ({}, dict(shuffle=False), dict(drop_last=True), dict(seed=3)):
        say(f"{rank} {options}", lambda: run(rank, **options))
""")


def test_names_that_packages_ask_for():
    """Private and older ones: of distributions, optimizers, reversible layers, containers (gpytorch, torch_optimizer, performer)."""
    beside_torch("""
from torch.distributions.transforms import *
from torch.distributions.utils import _standard_normal, _sum_rightmost
from torch.futures import Future
from torch.optim.lr_scheduler import LRScheduler, _LRScheduler
from torch.optim.optimizer import Optimizer, required
from torch.utils.checkpoint import get_device_states, set_device_states
from torch.utils.dlpack import from_dlpack, to_dlpack
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel.scatter_gather import gather
def reported() -> Future[torch.Tensor]:
    return ExpTransform()(torch.zeros(2))
class Around(Optimizer):
    "An optimizer around another one, which does not call Optimizer.__init__."
    def __init__(self, optimizer):
        self.optimizer, self.param_groups, self.state, self.defaults = optimizer, optimizer.param_groups, {}, {}
    def step(self, closure=None):
        return self.optimizer.step(closure)
class Collection(torch.nn.ModuleDict):
    def __init__(self):
        super().__init__()
        self.checked = True
        self.update({"a": torch.nn.ReLU()})
    def update(self, modules):
        assert self.checked
        super().update(modules)
def stepped():
    w = torch.ones(2, requires_grad=True)
    w.grad = torch.tensor([1.0, 2.0])
    Around(torch.optim.SGD([w], lr=0.5)).step()
    return w
torch.manual_seed(0)
say("normal", lambda: _standard_normal(torch.Size([3, 20]), torch.float32, torch.device("cpu")))
say("sums", lambda: [_sum_rightmost(torch.arange(6.0).reshape(1, 2, 3), n) for n in (0, 1, 2)])
say("reported", reported)
say("stepped", stepped)
say("older", lambda: issubclass(_LRScheduler, LRScheduler))
say("required", lambda: repr(required))
say("states", lambda: [list(got) for got in get_device_states(torch.ones(1))])
say("of cuda", lambda: [torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all([])])
say("set", lambda: set_device_states([], [], device_type="cpu"))
say("collection", lambda: list(Collection()))
say("recurrent", lambda: [isinstance(torch.nn.LSTM(2, 3), torch.nn.RNNBase), isinstance(torch.nn.GRUCell(2, 3), torch.nn.RNNCellBase)])
say("aten", lambda: [torch.ops.aten.add.Tensor(torch.ones(2), 1), torch.ops.aten.clone.default == torch.ops.aten.clone.default])
say("capsules", lambda: [from_dlpack(to_dlpack(torch.arange(3.0))), from_dlpack(torch.ones(2))])
say("compiled", lambda: isinstance(torch.nn.ReLU(), OptimizedModule))
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype as group
tensors = [torch.ones(1), torch.ones(2, dtype=torch.float64), torch.ones(3)]
groups = group([tensors, tensors[::-1]], with_indices=True).values()
say("groups", lambda: sorted(([lists, numbers] for lists, numbers in groups), key=lambda g: g[1]))
say("itself", lambda: [torch.torch is torch, torch.backends.mkldnn.is_available() is not None])
say("hooks", lambda: [len(torch.nn.ReLU()._forward_hooks), len(torch.nn.ReLU()._backward_hooks)])
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode
def asserted():
    torch._assert_async(torch.tensor(True))
    try:
        torch._assert_async(torch.tensor(False))
    except RuntimeError:
        return [is_fake(torch.ones(1)), get_proxy_mode(), torch._C._are_functorch_transforms_active()]
say("asserted", asserted)
say("generators", lambda: [torch.Generator().device.type, torch.Generator("cpu").device.type, torch.default_generator.device.type])
from torch.distributed import rpc
say("built", lambda: [type(torch.__config__.show()), torch.cuda._initialized])
""")


def test_trees_of_specs_and_work_in_the_background():
    beside_torch("""
from torch.utils._pytree import SUPPORTED_NODES, LeafSpec, TreeSpec, _get_node_type, tree_flatten, tree_unflatten
spec = TreeSpec(list, None, [LeafSpec(), TreeSpec(dict, ["a", "b"], [LeafSpec(), LeafSpec()])])
say("put together", lambda: [tree_unflatten([1, 2, 3], spec), isinstance(spec, TreeSpec), tree_unflatten([4], LeafSpec())])
say("taken apart", lambda: [list(SUPPORTED_NODES[_get_node_type(t)].flatten_fn(t)[0]) for t in ([1, 2], (3,), {"b": 4, "c": 5})])
say("leaves", lambda: [_get_node_type(x) in SUPPORTED_NODES for x in (1, "a", [1], torch.ones(1), None)])
def both(x: torch.Tensor) -> torch.Tensor:
    return torch.jit.wait(torch.jit.fork(torch.add, x, 1)) + torch.jit.fork(torch.neg, x).wait()
say("futures", lambda: both(torch.arange(3.0)))
from torch.autograd.profiler import EventList, profile, record_function
from torch.nn.parallel.distributed import DistributedDataParallel
from torch.storage import TypedStorage, UntypedStorage
from torch.utils.flop_counter import FlopCounterMode
say("storages", lambda: isinstance(torch.ones(2).untyped_storage(), UntypedStorage))
say("parallel", lambda: DistributedDataParallel is torch.nn.parallel.DistributedDataParallel)
""")


def test_modules_list_their_names():
    """Programs look for classes in `vars` of a module, and import its settings by path."""
    beside_torch("""
import torch.backends.cudnn as cudnn
import torch.backends.mkldnn
from torch.backends import cuda, cudnn as again
say("settings", lambda: [cudnn is torch.backends.cudnn is again, cuda is torch.backends.cuda, cudnn.is_available() is not None])
say("classes", lambda: [name in vars(torch.optim) for name in ("Adam", "SGD", "RMSprop", "Adem")])
activations = [a for a in vars(torch.nn.modules.activation).values() if isinstance(a, type) and issubclass(a, torch.nn.Module)]
say("activations", lambda: [torch.nn.Tanh in activations, torch.nn.GELU in activations])
say("schedulers", lambda: torch.optim.lr_scheduler.__dict__["StepLR"] is torch.optim.lr_scheduler.StepLR)
to = lambda *args, **options: [str(x) for x in torch._C._nn._parse_to(*args, **options)]
say("to", lambda: [to("cpu"), to(torch.float64), to(torch.device("cpu"), torch.half, True), to(dtype=torch.int32), to(torch.ones(1)), to()])
rows, columns = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 2, 0, 3])
starts = torch._convert_indices_from_coo_to_csr(rows, 5)
say("rows", lambda: [starts, torch._convert_indices_from_csr_to_coo(starts, columns)])
say("small", lambda: str(torch._convert_indices_from_coo_to_csr(rows, 5, out_int32=True).dtype))
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
net.tied = net[0]
for more in ({}, {"recurse": False}, {"remove_duplicate": False}, {"prefix": "a"}):
    say(f"members {more}", lambda: [k for k, _ in net._named_members(lambda m: [*m._parameters.items(), *m._buffers.items()], **more)])
w = net[0].weight
say("data", lambda: [w._cdata == w._cdata, w._cdata == net[0].bias._cdata, isinstance(w._cdata, int)])
""")


def test_lists_as_indices_are_tuples():
    beside_torch("""
x = torch.arange(60).view(3, 4, 5)
two = torch.tensor([0, 1])
keys = [[[0, 1], [1, 2]], [two, two], [0, slice(1, 3)], [None, 0], [0, 1], [[0, 1]], [True, False, True], [[[0, 1]], [[1, 2]]], [0, [1, 2]]]
for i, key in enumerate(keys):
    def written():
        y = x.clone()
        y[key] = -7
        return y
    say(str(i), lambda: (x[key], written()))
""")


def test_operations_on_lists_of_tensors():
    """What optimizers call: other lists, numbers for all or for each, a number first, tensors of one number."""
    beside_torch("""
def lists():
    return [torch.tensor([1.0, 4.0]), torch.tensor([[9.0]])], [torch.tensor([2.0, -3.0]), torch.tensor([[0.5]])]
def changed(name, *args, **options):
    a, _ = lists()
    getattr(torch, "_foreach_" + name)(a, *args, **options)
    return a
a, b = lists()
for name in ("abs", "neg", "sqrt", "exp", "sign", "reciprocal", "rsqrt", "norm", "max", "zero_", "sqrt_", "neg_", "clamp_min_"):
    numbers = [2.0] if name == "clamp_min_" else []
    say(name, lambda: changed(name, *numbers) if name.endswith("_") else getattr(torch, "_foreach_" + name)(b))
for name in ("add", "sub", "mul", "div", "maximum", "minimum"):
    say(name, lambda: [getattr(torch, "_foreach_" + name)(a, other) for other in (b, 2.0, [2.0, 3.0])])
    say(name + "_", lambda: [changed(name + "_", other) for other in (b, 2.0, [2.0, 3.0])])
say("alpha", lambda: [torch._foreach_add(a, b, alpha=0.5), torch._foreach_sub(a, b, alpha=2)])
say("by a tensor", lambda: [torch._foreach_mul(a, torch.tensor(3.0)), torch._foreach_div(a, torch.tensor(3.0))])
say("products", lambda: [torch._foreach_addcmul(a, b, b, 2.0), torch._foreach_addcdiv(a, b, a, [1.0, 2.0])])
say("in place", lambda: changed("addcdiv_", b, a, value=-0.1))
say("lerp", lambda: [torch._foreach_lerp(a, b, 0.25), torch._foreach_lerp(a, b, a), changed("lerp_", b, weight=0.1)])
say("powers", lambda: [torch._foreach_pow(a, 2.0), torch._foreach_pow(a, [2.0, 3.0]), torch._foreach_pow(2.0, a)])
say("norms", lambda: [torch._foreach_norm(b, ord=p) for p in (1, 2, float("inf"))] + [torch._foreach_norm(b, 2, torch.float64)])
say("copied", lambda: changed("copy_", b))
""", 1e-6)


def test_names_of_multiprocessing():
    """Python's own, but for what starts processes."""
    beside_torch("""
import multiprocessing
import torch.multiprocessing as mp
from torch.multiprocessing import Manager, Process, Queue, spawn
queue = Queue()
queue.put({"x": torch.arange(3)})
say("queue", lambda: queue.get(timeout=20)["x"])
say("names", lambda: [mp.cpu_count() == multiprocessing.cpu_count(), mp.get_context("fork").get_start_method()])
""")
    program("""
        import torch.multiprocessing as mp
        for call in (lambda: mp.spawn(print, nprocs=2), lambda: mp.Process(target=print), lambda: mp.Pool(2)):
            try:
                call()
            except RuntimeError as error:
                assert "torch.multiprocessing" in str(error)
            else:
                raise AssertionError
    """)


def test_tensorboards_writer(tmp_path):
    """What programs write is read back by tensorboardX's own parts; a graph of a model is refused."""
    pytest.importorskip("tensorboardX")
    program(f"""
        import glob
        import torch
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter({str(tmp_path)!r})
        assert writer.log_dir == {str(tmp_path)!r}
        for step in range(3):
            writer.add_scalar("loss", torch.tensor(1.0, requires_grad=True) / (step + 1), step)
        writer.add_scalars("both", {{"a": torch.tensor(2.0), "b": 3.0}}, 0)
        writer.add_histogram("weights", torch.randn(100), 0)
        writer.add_text("words", "as they are", 0)
        writer.add_hparams({{"lr": 0.1}}, {{"loss": torch.tensor(0.5)}})
        try:
            writer.add_graph(torch.nn.Linear(2, 2), torch.ones(1, 2))
        except RuntimeError as error:
            assert "add_graph" in str(error)
        else:
            raise AssertionError
        writer.close()
        from tensorboardX.proto import event_pb2
        import struct
        values = []
        for path in glob.glob({str(tmp_path)!r} + "/events*"):
            data = open(path, "rb").read()
            while data:
                size, = struct.unpack("<Q", data[:8])
                values += [(v.tag, v.simple_value) for v in event_pb2.Event.FromString(data[12:12 + size]).summary.value]
                data = data[16 + size:]
        assert [v for tag, v in values if tag == "loss"] == [1.0, 0.5, struct.unpack("f", struct.pack("f", 1 / 3))[0]], values
        assert "weights" in dict(values)
    """)


def test_groups_of_optimizers_have_torchs_items():
    beside_torch("""
def items(name, **options):
    shape = (2, 3) if name == "Muon" else (3,)
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(shape))], **options)
    plain = lambda v: float(v) if type(v) is int else tuple(map(plain, v)) if isinstance(v, tuple) else v
    return {k: plain(v) for k, v in sorted(optimizer.param_groups[0].items()) if k not in ("params", "decoupled_weight_decay")}
for name in "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD Muon NAdam RAdam RMSprop Rprop SGD".split():
    say(name, lambda: items(name))
say("given", lambda: [items(name, foreach=False)["foreach"] for name in ("Adam", "SGD")])
say("saved", lambda: sorted(torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], fused=False).state_dict()["param_groups"][0]))
""")


def test_lists_of_recurrent_weights():
    beside_torch("""
lstm = torch.nn.LSTM(2, 3, num_layers=2, bidirectional=True, proj_size=2)
say("names", lambda: [lstm._all_weights, lstm._flat_weights_names, torch.nn.GRU(2, 3, bias=False)._flat_weights_names])
say("weights", lambda: [[p.shape for p in lstm._flat_weights], [[p.shape for p in ps] for ps in lstm.all_weights]])
say("the same", lambda: all(p is getattr(lstm, n) for p, n in zip(lstm._flat_weights, lstm._flat_weights_names)))
""")


def test_kinds_of_distributions():
    """Which are exponential families, and which are transformed; of those, the base and the transforms."""
    beside_torch("""
import torch.distributions as D
def kinds(kind):
    return sorted(n for n in D.__all__ if isinstance(c := getattr(D, n), type) and issubclass(c, D.Distribution) and issubclass(c, kind))
for kind in (D.ExponentialFamily, D.TransformedDistribution):
    say(kind.__name__, lambda: kinds(kind))
t = torch.tensor
families = dict(normal=D.Normal(t([0.5, 1.0]), t([1.0, 2.0])), exponential=D.Exponential(t([0.5, 2.0])), gamma=D.Gamma(t(2.0), t(3.0)),
                chi2=D.Chi2(t(3.0)), beta=D.Beta(t(2.0), t(3.0)), dirichlet=D.Dirichlet(t([1.0, 2.0])), bernoulli=D.Bernoulli(t(0.3)),
                poisson=D.Poisson(t(2.0)),
                continuous=D.ContinuousBernoulli(t([0.3, 0.5])), wishart=D.Wishart(t(4.0), torch.eye(2) + 0.1))
for name, d in families.items():
    say(name, lambda: d._log_normalizer(*[p.double() for p in d._natural_params]))
    if name not in ("beta", "wishart", "dirichlet"):                # torch's are of another parametrization than its own formula
        say(name + " parameters", lambda: list(d._natural_params))
a, b, c = t([0.5, 0.75]), t([1.0, 2.0]), t([0.9, 0.8])
made = dict(log_normal=D.LogNormal(a, b), half_normal=D.HalfNormal(b), half_cauchy=D.HalfCauchy(b), gumbel=D.Gumbel(a, b),
            weibull=D.Weibull(a, b), pareto=D.Pareto(a, b), kumaraswamy=D.Kumaraswamy(a, b), inverse_gamma=D.InverseGamma(a, b))
for name, d in made.items():
    say(name, lambda: [type(d.base_dist).__name__, [type(x).__name__.replace("Transform", "") for x in d.transforms]])
    say(name + " values", lambda: [d.batch_shape, d.has_rsample, d.log_prob(c)])
    say(name + " parameters", lambda: [getattr(d, n) for n in sorted(d.arg_constraints)])
    wider = d.expand((3, 2))
    say(name + " wider", lambda: [wider.batch_shape, wider.log_prob(c), *[getattr(wider, n) for n in sorted(d.arg_constraints)]])
    say(name + " cdf", lambda: [d.cdf(c)] if name != "inverse_gamma" else [])
    if name != "inverse_gamma":
        torch.manual_seed(3)
        say(name + " draws", lambda: [d.sample((2,)), d.rsample(), wider.sample()])
class Mine(D.LogNormal):                                            # as pyro has it
    def __init__(self, loc, scale):
        super(D.LogNormal, self).__init__(D.Normal(loc, scale), D.ExpTransform(), validate_args=None)
    def expand(self, batch_shape, _instance=None):
        return super(D.LogNormal, self).expand(batch_shape, _instance=self._get_checked_instance(Mine, _instance))
say("mine", lambda: [Mine(a, b).log_prob(b), Mine(a, b).expand((3, 2)).mean, Mine(a, b).scale])
""", 1e-5)


def test_losses_of_two_shapes_are_broadcast_with_a_warning():
    beside_torch("""
import warnings
from torch.nn import functional as F
for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"):
    def run():
        x = torch.tensor([[0.5], [2.0], [3.5]], requires_grad=True)
        y = torch.tensor([1.0, 2.0, 0.25])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            loss = getattr(F, name)(x, y)
            each = getattr(F, name)(x, y, reduction="none")
        loss.backward()
        return loss, each, x.grad, bool(seen) or name == "poisson_nll_loss"
    say(name, run)
def refused():
    try:
        F.binary_cross_entropy(torch.full((3, 1), 0.5), torch.ones(3))
    except (ValueError, RuntimeError):
        return True
say("refused", refused)
""", 1e-6)


def test_what_is_overwritten_keeps_a_history_whose_gradient_is_zeros():
    beside_torch("""
ways = dict(zero=lambda y: y.zero_(), fill=lambda y: y.fill_(2.0), fill_tensor=lambda y: y.fill_(torch.tensor(2.0)),
            copy=lambda y: y.copy_(torch.ones(3)), all_items=lambda y: y.__setitem__(slice(None), 0.0), one=lambda y: y.__setitem__(0, 0.0),
            part=lambda y: y[:2].zero_(), view=lambda y: y.view(3, 1).fill_(1.0), compared=lambda y: y.eq_(1.0),
            more=lambda y: y.zero_().add_(1.0),
            uniform=lambda y: y.uniform_(), normal=lambda y: y.normal_(), bernoulli=lambda y: y.bernoulli_(), random=lambda y: y.random_(5),
            exponential=lambda y: y.exponential_(), geometric=lambda y: y.geometric_(0.5), data=lambda y: y.data.zero_(),
            without=lambda y: torch.nn.init.zeros_(y))
for name, write in ways.items():
    def run():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = x * x
        write(y)
        y.sum().backward()
        return y.requires_grad, y.shape, x.grad
    say(name, run)
def drawn(draw):
    p, q = torch.tensor([0.2, 0.5], requires_grad=True), torch.ones(3, 1, requires_grad=True)
    s = draw(p * 1.0, q * 1.0)
    requires = s.requires_grad
    s.sum().backward()
    with torch.no_grad():
        return requires, p.grad, q.grad, draw(p, q).requires_grad
say("bernoulli", lambda: drawn(lambda p, q: torch.bernoulli(p)))
say("bernoulli_", lambda: drawn(lambda p, q: torch.ones(3, 2).bernoulli_(p)))
say("poisson", lambda: drawn(lambda p, q: torch.poisson(p)))
say("normal", lambda: drawn(lambda p, q: torch.normal(p, 1.0)))
say("normal of both", lambda: drawn(torch.normal))
say("sample", lambda: torch.distributions.Bernoulli(torch.tensor(0.5, requires_grad=True)).sample().requires_grad)
""")


def test_channels_of_dropout_are_those_of_torch_whatever_the_number_of_dimensions():
    beside_torch("""
import warnings
for d in (1, 2, 3):
    for n in range(1, 7):
        def run():
            torch.manual_seed(0)
            x = torch.ones((3, 2, 2, 2, 2, 2)[:n], requires_grad=True)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                y = getattr(torch.nn.functional, f"dropout{d}d")(x * 1.0)
            z = getattr(torch.nn, f"Dropout{d}d")(0.25)(x)
            y.sum().backward()
            return y, z, x.grad, [w.category.__name__ for w in seen]
        if n > 1 and (d > 1 or n in (2, 3)):
            say(f"{d} {n}", run)
        elif (d, n) != (3, 1):
            try:
                getattr(torch.nn.functional, f"dropout{d}d")(torch.ones((3, 2, 2, 2, 2, 2)[:n]))
            except (RuntimeError, ValueError):
                say(f"{d} {n}", lambda: "refused")
""", 1e-6)


def test_norms_of_infinite_order_beside_nan():
    beside_torch("""
nan, inf = float("nan"), float("inf")
for p in (inf, -inf):
    for name, f in dict(norm=lambda x: x.norm(p), rows=lambda x: torch.norm(x, p, 1),
                        columns=lambda x: torch.linalg.vector_norm(x, p, 0, True),
                        dist=lambda x: torch.dist(x, torch.zeros(4), p)).items():
        def run():
            x = torch.tensor([[1.0, nan, 3.0, -3.0], [-3.0, 2.0, 2.0, 3.0], [-1.0, 1.0, 1.0, 1.0]], requires_grad=True)
            y = f(x)
            y.sum().backward()
            return y, x.grad
        say(f"{name} {p}", run)
""", 1e-6)


def test_optimizers_have_no_state_before_the_first_step():
    """SGD's momenta, say, were in it as zeros; of parameters that never had a gradient, too. A copy, and a state that was loaded, go on."""
    beside_torch("""
import copy
def run(kind, **options):
    frozen, *parameters = [torch.full((n,), 0.5, requires_grad=True) for n in (1, 2, 3)]
    optimizer = getattr(torch.optim, kind)([frozen, *parameters], lr=0.1, **options)
    keys = lambda: {k: sorted(v) for k, v in optimizer.state_dict()["state"].items()}
    found = [keys()]
    for step in range(5):
        optimizer.zero_grad()
        sum((p ** 3).sum() for p in parameters[step > 2:]).backward()
        optimizer.step()
        found += [keys()]
        if step == 1:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = getattr(torch.optim, kind)([frozen, *parameters], lr=0.1, **options)
            found += [keys()]
            optimizer.load_state_dict(saved)
            found += [keys()]
        if step == 2:
            (frozen, *parameters), optimizer = copy.deepcopy(([frozen, *parameters], optimizer))
            found += [keys()]
    return found, parameters
say("SGD", lambda: run("SGD"))
say("momentum", lambda: run("SGD", momentum=0.9))
for kind in ("Adam", "AdamW", "NAdam", "RAdam", "Adagrad"):
    say(kind, lambda: run(kind))
""", 1e-5)


def test_scalers_are_told_once():
    """A second `step` before `update` stepped again."""
    beside_torch("""
def run(calls):
    w = torch.ones(2, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.set_growth_interval(1)
    scaler.set_growth_factor(scaler.get_growth_factor() + 1)
    scaler.set_backoff_factor(scaler.get_backoff_factor() / 2)
    scaler.scale((w * w).sum()).backward()
    done = {"unscale": lambda: scaler.unscale_(optimizer), "step": lambda: scaler.step(optimizer), "update": scaler.update}
    try:
        for call in calls.split():
            done[call]()
    except (RuntimeError, AssertionError) as error:
        return isinstance(error, RuntimeError) and str(error)
    return w, scaler.get_scale(), scaler.get_growth_interval()
for calls in ("step", "step step", "step unscale", "unscale unscale", "unscale step update", "update", "step update update"):
    say(calls, lambda: run(calls))
""")


def test_names_that_are_other_names_arguments_in_another_order():
    beside_torch("""
w, x = torch.arange(12.0).reshape(4, 3), torch.arange(8.0).reshape(2, 4)
say("norms", lambda: [torch.norm_except_dim(w, 2, d) for d in (0, 1, -1)])
say("embedding", lambda: torch.embedding(w, torch.tensor([[1, 3], [0, 0]])))
say("batch_norm", lambda: torch.batch_norm(x, None, None, torch.ones(4), torch.full((4,), 2.0), False, 0.1, 1e-5, True))
def levels(mode):
    torch.set_deterministic_debug_mode(mode)
    return torch.get_deterministic_debug_mode(), torch.are_deterministic_algorithms_enabled()
say("deterministic", lambda: [levels(m) for m in ("warn", 2, "error", 1, "default")])
say("skip_init", lambda: [p.shape for p in torch.nn.utils.skip_init(torch.nn.Linear, 3, 5).parameters()])
say("meta", lambda: (torch.ones(2, device="meta").is_cpu, torch.ones(2).is_cpu, torch.ones(2, device="meta").get_device()))
say("autocast", lambda: torch.amp.is_autocast_available("cpu"))
import torch.cuda.memory, torch.cuda.random
say("cuda", lambda: (torch.cuda.memory.memory_allocated(), torch.cuda.random.manual_seed(3)))
""", 1e-6)


def test_states_of_schedulers_go_over():
    """Both ways: that of torch's LambdaLR, which has None for each function, took the functions away. `_get_lr_called_within_step` was not
    there, by which schedulers that programs bring warn."""
    beside_torch("""
import pickle, sys
s = torch.optim.lr_scheduler
class Falling:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, epoch):
        return self.factor ** epoch
class Bolts(s.LRScheduler):
    def get_lr(self):
        assert self._get_lr_called_within_step
        return self.base_lrs if self._is_initial else [group["lr"] * 0.5 for group in self.optimizer.param_groups]
def make(kind, *options):
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=1.0)
    return optimizer, kind(optimizer, *options)
def run(kind, options, others):
    optimizer, scheduler = make(kind, *options)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    saved = pickle.loads(pickle.dumps(scheduler.state_dict()))
    optimizer, scheduler = make(kind, *others)
    scheduler.load_state_dict(saved)
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    return scheduler.get_last_lr(), scheduler._get_lr_called_within_step, sorted(saved), saved.get("lr_lambdas")
say("function", lambda: run(s.LambdaLR, [lambda e: 0.9 ** e], [lambda e: 0.9 ** e]))
say("object", lambda: run(s.LambdaLR, [Falling(0.9)], [Falling(0.1)]))
say("product", lambda: run(s.MultiplicativeLR, [lambda e: 0.9], [lambda e: 0.9]))
say("own", lambda: run(Bolts, [], []))
say("steps", lambda: run(s.StepLR, [2, 0.5], [2, 0.5]))
""", 1e-12)


def test_windows_larger_than_what_there_is():
    """With ceil_mode, as torch pools them: that was an error."""
    beside_torch("""
F = torch.nn.functional
x = torch.arange(24.0).sin().reshape(2, 3, 4)
def run(pool, *args, **options):
    t = x.clone().requires_grad_()
    y = pool(t, *args, ceil_mode=True, **options)
    (y * y).sum().backward()
    return y, t.grad
for kernel, stride in ((5, 2), (6, 3), (6, 6)):
    say(f"avg {kernel}", lambda: run(F.avg_pool1d, kernel, stride))
    say(f"uncounted {kernel}", lambda: run(F.avg_pool1d, kernel, stride, count_include_pad=False))
    say(f"max {kernel}", lambda: run(F.max_pool1d, kernel, stride))
    say(f"max of both {kernel}", lambda: run(F.max_pool2d, (5, kernel), (3, stride)))
say("dilated", lambda: run(F.max_pool1d, 3, 2, dilation=2))
""", 1e-6)


def test_modules_show_what_is_not_the_default():
    beside_torch("""
say("conv", lambda: repr(torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False)))
say("size", lambda: repr(torch.nn.Upsample(size=(3, 4), mode="bilinear")))
say("factor", lambda: repr(torch.nn.Upsample(scale_factor=2.0)))
""")


def test_hooks_before_loading_see_the_entries_of_their_module():
    """They saw those of all modules: one that renames whatever it sees renamed those of others."""
    beside_torch("""
from torch import nn
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def _load_from_state_dict(self, state_dict, prefix, *rest):
        state_dict.setdefault(prefix + "scale", torch.full((1,), 3.0))
        super()._load_from_state_dict(state_dict, prefix, *rest)
def run():
    model, seen = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1), Scaled())), []
    def rename(module, state_dict, prefix, *rest):
        seen.append([prefix, sorted(state_dict)])
        for key in list(state_dict):
            state_dict[key.replace("kernel", "weight")] = state_dict.pop(key)
    model[1].register_load_state_dict_pre_hook(rename)
    state = {"0.weight": torch.ones(1, 1), "0.bias": torch.ones(1), "1.0.kernel": torch.full((1, 1), 2.0), "1.0.bias": torch.ones(1)}
    found = str(model.load_state_dict(state))
    left = model.load_state_dict({**state, "0.kernel": torch.ones(1)}, strict=False)
    return seen, found, left.unexpected_keys, left.missing_keys, list(model.parameters()), sorted(state)
say("run", run)
""")
