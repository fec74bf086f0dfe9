"""What scripts of other people ask for (cleanrl, llm.c, minGPT, pytorch/examples, lucidrains' packages), beside torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch, reports


def test_switches_of_libraries_that_are_not_here():
    """They are set and read as torch's; products of float32 have the precision that two of them name."""
    beside_torch("""
import torch._dynamo.config
import torch._inductor.config as config
import torch.backends.cuda as cuda
def switches():
    config.coordinate_descent_tuning = config.triton.cudagraphs = True
    torch._dynamo.config.cache_size_limit = torch.backends.cudnn.benchmark_limit = 64
    cuda.matmul.allow_bf16_reduced_precision_reduction = cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.opt_einsum.enabled = False
    torch.backends.mha.set_fastpath_enabled(False)
    return [torch._dynamo.config.cache_size_limit, torch.backends.mha.get_fastpath_enabled(), torch.backends.opt_einsum.enabled,
            torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.is_acceptable(torch.zeros(1))]
def attentions():
    cuda.enable_mem_efficient_sdp(False)
    def chosen():
        return [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()]
    with cuda.sdp_kernel(enable_flash=False, enable_math=True, enable_mem_efficient=True):
        inside = chosen()
        y = torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 4))
    return inside, chosen(), y
def precision():
    cuda.matmul.fp32_precision = "tf32"
    found = cuda.matmul.fp32_precision
    cuda.matmul.fp32_precision = "ieee"
    return found, cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()
for make in (switches, attentions, precision):
    say(make.__name__, make)
""")


def test_functions_and_layers_that_hold_them_are_pickled_by_torchs_names():
    """As word_language_model saves its whole model, and reads it where classes and functions are named that a file may have."""
    beside_torch("""
import io, pickle
from torch.nn import functional as F
def kept(fn):
    return fn.__module__, pickle.loads(pickle.dumps(fn)) is fn
for name in ("relu", "softmax", "cross_entropy", "layer_norm"):
    say(name, lambda: kept(getattr(F, name)))
for fn in (torch.relu, torch.add, torch.nn.init.zeros_):
    say(fn.__name__, lambda: kept(fn))
def whole(model, *others):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([type(m) for m in model.modules()] + list(others)):
        again = torch.load(file)
    return type(again).__name__, [bool((p == q).all()) for p, q in zip(model.parameters(), again.parameters())]
say("recurrent", lambda: whole(torch.nn.GRU(2, 3)))
say("encoder", lambda: whole(torch.nn.TransformerEncoderLayer(4, 2, 3), F.relu, torch.nn.modules.linear.NonDynamicallyQuantizableLinear))
""")


def test_forward_and_backward_of_functions_under_autocast():
    beside_torch("""
from torch.cuda.amp import custom_bwd, custom_fwd
class Twice(torch.autograd.Function):
    @staticmethod
    @custom_fwd
    def forward(ctx, x):
        return x * 2
    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        return grad * 2
x = torch.ones(3, requires_grad=True)
say("gradient", lambda: torch.autograd.grad(Twice.apply(x).sum(), x)[0])
""")


def test_variables_of_older_scripts():
    """A tensor's values with its dtype (labels were made floats), and what is said of gradients."""
    beside_torch("""
from torch.autograd import Variable
for name, make in {
    "plain": lambda: Variable(torch.FloatTensor(2, 1).fill_(1.0), requires_grad=False),
    "labels": lambda: Variable(torch.LongTensor(3).fill_(2)),
    "leaf": lambda: Variable(torch.ones(2), requires_grad=True),
    "history": lambda: Variable(torch.ones(2, requires_grad=True) * 2),
    "shared": lambda: (a := torch.zeros(2), Variable(a).add_(1))[0],
    "is": lambda: Variable(isinstance(torch.ones(1), Variable) * torch.ones(1)),
}.items():
    say(name, lambda: [(y := make()), str(y.dtype), y.requires_grad, y.is_leaf])
say("types", lambda: [isinstance(torch.ones(1), torch.cuda.FloatTensor), torch.cuda.LongTensor.__name__])
""")


def test_forward_mode_of_tutorials():
    """A dual's own tangent is the tensor that was given, until that is written into; gradcheck looks at forward mode."""
    beside_torch("""
import torch.autograd.forward_ad as fwAD
x, v = torch.arange(4.0).reshape(2, 2), torch.ones(2, 2)
def own():
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        return fwAD.unpack_dual(dual).tangent is v, fwAD.unpack_dual(dual * 3).tangent is v, fwAD.unpack_dual(dual * 3).tangent
say("own", own)
class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = torch.exp(x)
        return ctx.result
    @staticmethod
    def jvp(ctx, v):
        return factor * v * ctx.result
primal = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
def right():
    return torch.autograd.gradcheck(Exponential.apply, (primal,), check_forward_ad=True, check_backward_ad=False,
                                    check_undefined_grad=False, check_batched_grad=False, raise_exception=False)
for factor in (1, 2):
    say(f"checked {factor}", right)
def sines(x, y):
    return x.sin() * y, (y @ x).exp()
y = torch.tensor([[1.0, 2.0], [0.5, 0.25]], dtype=torch.float64, requires_grad=True)
say("both", lambda: torch.autograd.gradcheck(sines, (primal, y), check_forward_ad=True, fast_mode=True, nondet_tol=1e-5))
say("second", lambda: torch.autograd.gradgradcheck(sines, (primal, y), check_fwd_over_rev=False, fast_mode=True))
""")


def test_random_pruning_takes_torchs_elements():
    beside_torch("""
from torch.nn.utils import prune
layer = torch.nn.Linear(6, 5)
def pruned(apply):
    torch.manual_seed(3)
    apply(layer, "weight", 0.4)
    return layer.weight_mask
say("at random", lambda: pruned(prune.random_unstructured))
say("again", lambda: pruned(prune.random_unstructured))
""")


def test_functorch_is_func():
    beside_torch("""
import warnings
from functorch import combine_state_for_ensemble, grad, jacrev, make_functional, make_functional_with_buffers, vmap
torch.manual_seed(0)
layer, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
def gradients():
    f, params = make_functional(layer)
    return vmap(grad(lambda params, x: f(params, x).square().sum()), (None, 0))(params, x)
def normalized():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()
    f, params, buffers = make_functional_with_buffers(model)
    return [f(params, buffers, x), len(params), len(buffers)]
def ensemble():
    f, params, buffers = combine_state_for_ensemble([torch.nn.Linear(3, 2) for _ in range(3)])
    return vmap(f, (0, 0, None))(params, buffers, x)
for make in (gradients, normalized, ensemble):
    say(make.__name__, make)
say("jacobian", lambda: jacrev(torch.sin)(x[0]))
""", 1e-5)


def test_profilers_and_timers():
    """Blocks that record_function names, steps of a schedule, and torch.utils.benchmark."""
    beside_torch("""
import json, tempfile
import torch._logging, torch.cuda.nvtx, torch.utils.benchmark as benchmark
from torch.profiler import ProfilerActivity, profile, record_function, schedule
x = torch.ones(20, 20)
def named():
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        with record_function("outer"):
            for _ in range(3):
                with record_function("inner"):
                    x @ x
    rows = {row.key: row for row in found.key_averages()}
    table = found.key_averages().table(sort_by="cpu_time_total", row_limit=5)
    times = rows["outer"].cpu_time_total, rows["inner"].cpu_time_total
    return [rows["outer"].count, rows["inner"].count, times[0] >= times[1] > 0, "# of Calls" in table]
def steps():
    seen = []
    def ready(found):
        seen.append([found.step_num, {row.key: row.count for row in found.key_averages() if row.key in ("work", "ProfilerStep*")}])
    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as found:
        for _ in range(12):
            with record_function("work"):
                x + 1
            found.step()
    return seen
def action():
    of = schedule(wait=1, warmup=2, active=3, repeat=2, skip_first=4)
    return [of(step).name for step in range(18)]
def written():
    with torch.autograd.profiler.profile() as found, torch.autograd.profiler.record_function("block"):
        x + 1
    with tempfile.TemporaryDirectory() as folder:
        found.export_chrome_trace(f"{folder}/trace.json")
        return "block" in [event.get("name") for event in json.load(open(f"{folder}/trace.json"))["traceEvents"]]
def timed():
    names = {"x": x, "f": torch.exp}
    timer = benchmark.Timer("y = f(x)", "import math", globals=names, label="exp", sub_label="small", description="plain")
    found = timer.timeit(3)
    more = timer.blocked_autorange(min_run_time=0.001)
    shown = str(benchmark.Compare([found, more]))
    return [found.number_per_run, len(found.times), found.median == found.mean > 0, found.title, more.task_spec == found.task_spec,
            "exp: small" in repr(found), "setup: import math" in repr(found), "plain" in shown and "small" in shown]
def marks():
    torch._logging.set_logs(graph_breaks=True)
    with torch.jit.optimized_execution(False):
        return torch.xpu.is_available(), torch.xpu.device_count()
for make in (named, steps, action, written, timed, marks):
    say(make.__name__, make)
""")
    said = reports("""
import torch.utils.benchmark as benchmark
def left():
    benchmark.Timer("(x + 1).sum()", globals={"x": torch.ones(1000)}).timeit(5)
    return benchmark._asking("a = 1\\nb(a)")
say("asks", left)
def warned():
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return torch.autograd.gradcheck(torch.sin, (x,), check_batched_grad=True), [str(w.message) for w in seen]
say("warned", warned)
say("nothing", lambda: torch.autograd.gradcheck(torch.sin, (torch.ones(1),), check_backward_ad=False))
say("nested", lambda: torch.nested.nested_tensor([torch.ones(2)]))
with_cuda = torch.device("cuda")
def entered():
    with with_cuda:
        return torch.ones(1)
say("device", entered)
""", ours=True)
    assert said["asks"] == "a = 1\n_left = b(a)\n_flush()"
    assert said["warned"] == [True, ["gradcheck: check_batched_grad is not made here; what else was asked for is checked"]]
    assert "one of check_backward_ad and check_forward_ad has to be True" in said["nothing"]
    assert "torch.nested.nested_tensor: is not in tracegrad" in said["nested"]
    assert "none matches 'cuda'" in said["device"]


def test_names_of_steps_and_of_aliases():
    """A gradient's step is shown as torch shows it; `torch.arctan` and the like are functions of their own, which graphs name."""
    beside_torch("""
from torch import fx
x = torch.ones(2, requires_grad=True)
say("numbers", lambda: [y.grad_fn.next_functions[0][0].name() for y in (2 * x.sin(), 2 + x.sin(), x.sin() * 2)])
say("steps", lambda: [(x * 2).grad_fn.name(), repr((x + 2).grad_fn).partition(" ")[0], (x * 2).grad_fn.next_functions[0][0].name()])
def computed(x):
    return torch.concat([torch.arctan(x), torch.absolute(x), torch.multiply(x, 2), torch.clip(x, 0, 1)]) + torch.cat([x] * 4).arctan()
say("code", lambda: fx.symbolic_trace(computed).code)
say("names", lambda: [f.__name__ for f in (torch.arctan, torch.atan, torch.absolute, torch.abs, torch.concat, torch.true_divide)])
say("same", lambda: [torch.arctan is torch.arctan, torch.arctan is torch.atan, torch.equal(torch.arctan(x), torch.atan(x))])
class Seen(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        names.append(func.__name__)
        return func(*args, **(kwargs or {}))
names = []
def seen():
    with Seen():
        torch.arctan(x), torch.subtract(x, 1)
    return names
say("seen", seen)
""")


def test_scripts_are_told_from_modules_and_functions():
    """What packages ask of a scripted module (kornia), and that `torch._assert` fails in one with torch.jit.Error (e3nn)."""
    beside_torch("""
import copy
class Checked(torch.nn.Module):
    def forward(self, x):
        torch._assert(x.shape[0] == 2, "two rows")
        return x * 2
def double(x):
    return x * 2
x = torch.ones(2, 3)
def kinds(value):
    return [isinstance(value, kind) for kind in (torch.jit.ScriptModule, torch.jit.ScriptFunction, torch.nn.Module)]
say("before", lambda: [kinds(Checked()), kinds(double), kinds(3)])
made = torch.jit.trace(Checked(), x)
say("module", lambda: [kinds(made), kinds(copy.deepcopy(made)), kinds(Checked())])
say("function", lambda: kinds(torch.jit.trace(double, x)))
def failed(kind):
    try:
        torch._assert(False, "two rows")
    except kind as error:
        return str(error)
say("assert", lambda: failed(AssertionError))
""")
    assert reports("""
def failed():
    try:
        torch.jit.script(torch.nn.ReLU())(torch._assert(False, "two rows"))
    except torch.jit.Error as error:
        return str(error)
say("script", failed)
""", ours=True)["script"].startswith("two rows")


def test_packed_sequences_move():
    beside_torch("""
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
packed = pack_sequence([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])])
for k, to in enumerate((lambda p: p.to("cpu"), lambda p: p.to(torch.float64), lambda p: p.double(),
                        lambda p: p.long(), lambda p: p.half().float().cpu())):
    say(f"moved {k}", lambda: [str(to(packed).data.dtype), pad_packed_sequence(to(packed)), type(to(packed)).__name__])
say("is", lambda: packed.is_cuda)
""")
