"""Names of torch's that programs ask for beside its documented ones, beside torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch
from tests.torch_api.test_hook import program


def test_versions_compare_as_numbers():
    """"2.14.1" >= "2.4" is True of torch's versions, and False of texts."""
    beside_torch("""
from torch.torch_version import TorchVersion
v = TorchVersion("2.14.1")
say("kinds", lambda: [isinstance(torch.__version__, TorchVersion), isinstance(torch.__version__, str), torch.__version__ >= "2.4"])
say("order", lambda: [[v > o, v >= o, v < o, v <= o, v == o] for o in
                      ("2.4", "2.14.1", "2.14.1.0", "2.15.0a0", "2.14.1a1", "3", (2, 4), (2, 14, 1), [2, 15], "1.9.0+cu111")])
say("before", lambda: [TorchVersion(a) < b for a, b in (("1.8.0a0+5", "1.8"), ("1.8.0rc1", "1.8.0rc2"), ("1.8.0", "1.8.0.post1"))])
say("text", lambda: [v.split("."), f"{v}", v == "parrot", hash(v) == hash("2.14.1")])
""")


def test_gradients_of_convolutions():
    beside_torch("""
import torch.nn.functional as F
torch.manual_seed(0)
for dims, grads in ((1, torch.nn.grad.conv1d_input), (2, torch.nn.grad.conv2d_input), (3, torch.nn.grad.conv3d_input)):
    options = dict(stride=2, padding=1, dilation=1, groups=2)
    x, w = torch.randn(2, 4, *[5] * dims, dtype=torch.float64), torch.randn(6, 2, *[3] * dims, dtype=torch.float64, requires_grad=True)
    y = getattr(F, f"conv{dims}d")(x, w, **options)
    g = torch.randn(y.shape, dtype=torch.float64, requires_grad=True)
    by_weight = getattr(torch.nn.grad, f"conv{dims}d_weight")
    say(f"{dims}", lambda: [grads(x.shape, w, g, **options), by_weight(x, w.shape, g, **options)])
    say(f"{dims} again", lambda: torch.autograd.grad(grads(x.shape, w, g, **options).square().sum(), (w, g)))
    with torch.no_grad():
        say(f"{dims} plain", lambda: grads(x.shape, w, g, **options).requires_grad)
""", 1e-9)


def test_small_names():
    beside_torch("""
from torch import nn
from torch.autograd.variable import Variable
from torch.autograd.anomaly_mode import detect_anomaly
from torch.fx._compatibility import compatibility
from torch.nn.modules.transformer import _get_activation_fn, _get_clones
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import ParamsT, _default_to_fused_or_foreach, _get_value, _use_grad_for_differentiable, _view_as_real
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.checkpoint import detach_variable, noop_context_fn
from torch.utils.data._utils.worker import get_worker_info
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary
def errors():
    found = []
    for name in ("_check", "_check_value", "_check_index", "_check_type", "_check_not_implemented"):
        getattr(torch, name)(True)
        try:
            getattr(torch, name)(False, lambda: "words")
        except Exception as error:
            found.append([type(error).__name__, str(error)])
    return found
say("errors", errors)
say("lazy", lambda: [is_lazy(nn.LazyLinear(2).weight), is_lazy(nn.Linear(1, 2).weight)])
say("clones", lambda: [len(c := _get_clones(nn.Linear(2, 2), 3)), c[0] is c[1], _get_activation_fn("gelu")(torch.ones(1))])
say("values", lambda: [_get_value(torch.tensor(2.0)), _get_value(3), _default_to_fused_or_foreach([], True)])
def reals():
    a, b = [torch.ones(2), torch.ones(2, dtype=torch.complex64)], [torch.ones(2), torch.zeros(2, dtype=torch.complex64)]
    _view_as_real(a, b)
    return a, b
say("reals", reals)
class Plain(torch.optim.Optimizer):
    def __init__(self, params: ParamsT):
        super().__init__(params, dict(differentiable=False))
    @_use_grad_for_differentiable
    def step(self):
        return torch.is_grad_enabled()
say("steps", lambda: Plain([torch.ones(1, requires_grad=True)]).step())
say("blocks", lambda: [is_traceable_wrapper_subclass(torch.ones(1)), get_worker_info(), len(noop_context_fn()),
                       [x.requires_grad for x in detach_variable((torch.ones(1, requires_grad=True) * 2, torch.ones(1)))]])
def weak():
    x, held = torch.ones(1), WeakIdKeyDictionary()
    held[x] = 1
    before = len(held), held[x]
    del x
    return before, len(held)
say("weak", weak)
say("norms", lambda: [torch._weight_norm(torch.arange(6.0).reshape(2, 3), torch.tensor([[2.0], [3.0]]), 0),
                      torch._shape_as_tensor(torch.ones(2, 3))])
class Wrapped(nn.Linear):
    def __call__(self, x):
        return 2 * self._call_impl(x)
say("calls", lambda: [type(Wrapped(1, 1)(torch.ones(1, 1))).__name__, isinstance(torch.ones(1), Variable)])
import io
file = io.BytesIO()
torch.save(dict(x=torch.ones(2)), file)
file.seek(0)
say("places", lambda: torch.load(file, map_location=lambda s, l: torch.serialization.default_restore_location(s, "cpu"))["x"])
""", 1e-6)


def test_names_of_devices():
    """What programs ask of accelerators; there is none here."""
    program("""
        import torch
        from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, load
        from torch.utils._triton import has_triton
        assert torch.cpu.is_available() and torch.cpu.device_count() == 1 and torch.cpu.current_device() == "cpu"
        assert not torch.mps.is_available() and torch.mps.current_allocated_memory() == 0 and torch.mps.empty_cache() is None
        assert torch.accelerator.max_memory_allocated() == 0 and torch.accelerator.memory_stats() == {} and CUDA_HOME is None
        assert torch.cuda.memory_stats() == {} and torch.cuda.get_arch_list() == [] and not has_triton()
        state = torch.cuda.get_rng_state()
        x = torch.rand(3)
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(3), x)
        torch.mps.manual_seed(0)
        y = torch.rand(3)
        torch.manual_seed(0)
        assert torch.equal(torch.rand(3), y)
        with torch.cpu.amp.autocast(), torch.cuda.device_of(x):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
        try:
            load("mine", ["mine.cpp"])
        except RuntimeError as error:
            assert "compiled for torch" in str(error)
        else:
            raise AssertionError
    """)


def test_fake_quantization():
    """Floats as integers would hold them; the gradient passes what was not clamped."""
    beside_torch("""
torch.manual_seed(0)
x = torch.randn(3, 4, requires_grad=True)
def both(f, x, *args):
    y = f(x, *args)
    return [y, *torch.autograd.grad((y * torch.arange(12.0).reshape(3, 4)).sum(), x), str(y.dtype)]
per_tensor, per_channel = torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine
for scale, zero, low, high in ((0.1, 0, -128, 127), (0.05, 10, 0, 255), (0.02, 5, 0, 31), (0.3, -1, -8, 7)):
    say(f"numbers {scale}", lambda: both(per_tensor, x, scale, zero, low, high))
    say(f"tensors {scale}", lambda: both(per_tensor, x, torch.tensor(scale), torch.tensor(zero, dtype=torch.int32), low, high))
    for axis in (0, 1):
        n = x.shape[axis]
        scales = torch.linspace(scale, 2 * scale, n)
        say(f"channels {scale} {axis}", lambda: both(per_channel, x, scales, torch.full((n,), zero, dtype=torch.int32), axis, low, high))
        say(f"floats {scale} {axis}", lambda: both(per_channel, x, scales, torch.full((n,), zero + 0.3), axis, low, high))
say("double", lambda: both(per_tensor, x.detach().double().requires_grad_(), 0.1, 0, -8, 7))
say("half", lambda: per_tensor(x.detach().half(), 0.1, 0, -8, 7))
say("halves", lambda: per_tensor(torch.arange(-20, 20) / 4, 0.5, 1, -8, 7))
extreme = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.25], requires_grad=True)
say("extreme", lambda: [per_tensor(extreme, 0.1, 0, -8, 7), *torch.autograd.grad(per_tensor(extreme, 0.1, 0, -8, 7).sum(), extreme)])
def refused(f, *args):
    try:
        f(*args)
    except RuntimeError:
        return True
say("errors", lambda: [refused(per_tensor, x, 0.1, 0, 8, 7), refused(per_tensor, x, 0.1, 300, 0, 255),
                       refused(per_channel, x, torch.ones(2), torch.zeros(2, dtype=torch.int32), 0, 0, 255),
                       refused(per_tensor, x.long(), 0.1, 0, 0, 9),
                       refused(per_channel, x, torch.ones(3), torch.zeros(3, dtype=torch.int64), 0, 0, 255),
                       refused(per_channel, x, torch.ones(4), torch.zeros(4, dtype=torch.int32), -1, 0, 255)])
""", tolerance=1e-6)


def test_scripts_are_saved_and_read_again(tmp_path):
    """In a format of tracegrad's own: values and texts agree with torch's, whose files are refused with a way out."""
    beside_torch(f"""
import io
OURS = "tracegrad" in sys.modules                           # torch scripts only what stands in a file
FOLDER = {str(tmp_path)!r} + f"/{{OURS}}"
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("shift", torch.ones(2))
    def forward(self, x):
        return torch.relu(self.layer(x)) + self.shift
torch.manual_seed(0)
model, x = Model(), torch.randn(4, 3)
def read(kind):
    made = torch.jit.script(model) if kind == "script" and OURS else torch.jit.trace(model, x)
    torch.jit.save(made, FOLDER + kind, _extra_files={{"note": "first"}})
    made.save(FOLDER + "x")
    torch.jit.save(made, buffer := io.BytesIO())
    buffer.seek(0)
    extra = {{"note": ""}}
    found = torch.jit.load(FOLDER + kind, map_location="cpu", _extra_files=extra)
    return [found(x), torch.jit.load(FOLDER + "x")(x), torch.jit.load(buffer)(x), sorted(found.state_dict()), extra["note"].decode(),
            isinstance(found, torch.nn.Module), found.eval().training, sorted(model.state_dict())]
for kind in ("script", "trace"):
    say(kind, lambda: read(kind))
def explained():
    import torch._dynamo
    found = torch._dynamo.explain(lambda x: torch.sin(x) + torch.cos(x))(torch.ones(3))
    return [found.graph_count, found.graph_break_count, found.op_count, len(found.graphs), "Graph Count: 1" in str(found)]
say("explained", explained)
""", tolerance=1e-6)
