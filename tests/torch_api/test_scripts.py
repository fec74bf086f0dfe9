"""What scripts of other people ask for (cleanrl, llm.c, minGPT, pytorch/examples, lucidrains' packages), beside torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch


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
