"""What packages for torch ask for: how modules take parameters, devices in files, collate functions, masks, counters. Beside torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch


def test_replaced_register_parameter_is_called_by_assignment():
    beside_torch("""
from torch import nn
own = nn.Module.register_parameter
def without_values(module, name, param):
    own(module, name, param)
    if param is not None:
        module._parameters[name] = type(param)(module._parameters[name].to("meta"), requires_grad=param.requires_grad)
torch.manual_seed(0)
nn.Module.register_parameter = without_values
model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
nn.Module.register_parameter = own
say("devices", lambda: [str(p.device) for p in model.parameters()])
say("nothing was drawn", lambda: torch.rand(2))
with torch.no_grad():
    weight = nn.Parameter(torch.ones(2))
    say("to meta", lambda: [str(weight.to("meta").device), weight.to("meta").shape])
""")


def test_devices_in_files(tmp_path):
    beside_torch(f"""
import copy, pickle
FILE = {str(tmp_path / "file.pt")!r}
def through_file():
    torch.save(dict(device=torch.device("cpu"), x=torch.ones(2)), FILE)
    found = torch.load(FILE, weights_only=False)
    return [str(found["device"]), found["x"]]
say("file", through_file)
say("pickle", lambda: [str(pickle.loads(pickle.dumps(torch.device(name)))) for name in ("cpu", "meta", "cuda")])
say("same", lambda: pickle.loads(pickle.dumps(torch.device("cpu"))) == torch.device("cpu"))
say("copy", lambda: str(copy.deepcopy(torch.device("cuda"))))
""")


def test_dropout_of_packed_sequences():
    beside_torch("""
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
torch.manual_seed(0)
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    for lengths in ((5, 3, 2), (2, 5, 3)):
        layers = kind(4, 6, 2, bidirectional=True, dropout=0.5)
        packed = pack_sequence([torch.randn(n, 4) for n in lengths], enforce_sorted=False)
        say(f"{kind.__name__} {lengths}", lambda: pad_packed_sequence(layers(packed)[0]))
say("next", lambda: torch.rand(2))
""", tolerance=1e-5)


def test_collate_functions_of_own_classes():
    beside_torch("""
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
class Box:
    def __init__(self, x):
        self.x = x
default_collate_fn_map.update({Box: lambda batch, *, collate_fn_map=None: [b.x for b in batch]})
say("boxes", lambda: default_collate([(Box(1), 2.0), (Box(3), 4.0)]))
say("tensors", lambda: collate_tensor_fn([torch.ones(2), torch.zeros(2)], collate_fn_map={}))
say("loader", lambda: [batch for batch in DataLoader([Box(k) for k in range(4)], batch_size=2)])
""")


def test_causal_biases():
    beside_torch("""
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as attention
torch.manual_seed(0)
q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
for make in (causal_upper_left, causal_lower_right):
    bias = make(3, 5)
    say(make.__name__, lambda: [attention(q, k, v, attn_mask=bias), isinstance(bias, CausalBias), bias.seq_len_q, bias.seq_len_kv,
                                str(bias.variant)])
""", tolerance=1e-6)


def test_settings_and_counters():
    beside_torch("""
from torch.utils.flop_counter import FlopCounterMode
counter = FlopCounterMode(display=False)
say("counted", lambda: [counter.get_total_flops(), counter.get_flop_counts()])
settings = torch.__future__
say("first", lambda: [settings.get_swap_module_params_on_conversion(), settings.get_overwrite_module_params_on_conversion()])
settings.set_swap_module_params_on_conversion(True)
say("set", lambda: settings.get_swap_module_params_on_conversion())
""")


def test_dropout_draws_in_the_order_of_memory():
    """Of permuted views, and of what an attention gives, which torch has as (L, N, E) whatever comes first."""
    beside_torch("""
import torch.nn.functional as F
drops = (lambda x: F.dropout(x, 0.4), lambda x: F.alpha_dropout(x, 0.4, True), lambda x: F.dropout(x, 0.4, True, True),
         lambda x: F.feature_alpha_dropout(x, 0.4, True), lambda x: F.dropout1d(x, 0.4))
views = (lambda x: x.transpose(0, 2), lambda x: x.permute(2, 0, 1), lambda x: x[:, ::2].transpose(0, 1), lambda x: x.mT,
         lambda x: x[1:].transpose(1, 2), lambda x: x.transpose(0, 1).contiguous(), lambda x: x)
for k, drop in enumerate(drops):
    for n, view in enumerate(views):
        torch.manual_seed(3)
        say(f"dropped {k} {n}", lambda: drop(view(torch.arange(60.0).reshape(3, 4, 5) + 1)))
for first in (True, False):
    for weights in (True, False):
        torch.manual_seed(0)
        x = torch.randn(3, 5, 8)
        attention = torch.nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=first)
        layer = torch.nn.TransformerDecoderLayer(8, 2, 16, dropout=0.3, batch_first=first)
        say(f"attention {first} {weights}", lambda: F.dropout(attention(x, x, x, need_weights=weights)[0], 0.3))
        say(f"layer {first} {weights}", lambda: layer(x, x))
say("next", lambda: torch.rand(2))
""", tolerance=1e-4)


def test_whose_tensors_are():
    """autoray, and so torchquad, asks the class's module; without torch's, what it computes loses its history."""
    beside_torch("""
import copy, pickle
x = torch.ones(2)
p = torch.nn.Parameter(x)
say("classes", lambda: [str(type(x)), str(type(p)), type(x).__module__])
say("pickled", lambda: [pickle.loads(pickle.dumps(torch.Tensor)) is torch.Tensor, pickle.loads(pickle.dumps(x)), copy.deepcopy(x)])
say("shown", lambda: [str(x), repr(p)])
""")


def test_lists_of_tensors_of_other_classes():
    beside_torch("""
from collections import namedtuple
Pair = namedtuple("Pair", "first second")
class Own(list):
    pass
pair = Pair(torch.ones(2, requires_grad=True), torch.zeros(2))
say("named tuples", lambda: [torch.cat(pair), torch.stack(pair, 1), torch.hstack(pair), torch.block_diag(*pair)])
say("lists", lambda: [torch.stack(Own(pair)), torch.einsum("i,i", Own(pair)), torch.meshgrid(Own(pair), indexing="ij")])
say("gradient", lambda: torch.autograd.grad(torch.cat(pair).sum(), Own([pair.first])))
""")


def test_operations_of_two_numbers():
    """transformers' Longformer divides sizes by `torch.div`."""
    beside_torch("""
for name in ("add", "sub", "mul", "div", "true_divide", "floor_divide", "multiply"):
    op = getattr(torch, name)
    say(name, lambda: [op(7, 2), op(-7, 2.0), str(op(7, 2).dtype), str(op(7, 2.5).dtype)])
say("rounded", lambda: torch.div(7, 2, rounding_mode="trunc") - 1)
""")


def test_names_that_packages_import():
    beside_torch("""
from torch.distributions.multivariate_normal import _precision_to_scale_tril
from torch.nn.modules import CrossMapLRN2d
from torch.utils.data._utils.pin_memory import pin_memory
say("factor", lambda: [round(v, 4) for v in _precision_to_scale_tril(torch.tensor([[2.0, 0.5], [0.5, 1.0]])).flatten().tolist()])
say("class", lambda: isinstance(torch.nn.LayerNorm(2), CrossMapLRN2d))
say("generators", lambda: len(torch.cuda.default_generators))
say("marked", lambda: callable(torch.cuda.nvtx.range("name")))
def refused(check, *args):
    try:
        check(*args)
    except Exception as error:
        return type(error).__name__
say("checks", lambda: [refused(torch._check_tensor_all_with, ValueError, torch.tensor([True, value])) for value in (True, False)])
say("more", lambda: [refused(check, False) for check in (torch._check_index, torch._check_value, torch._check_type)])
""")


def test_hooks_and_steps_of_ones_own(tmp_path):
    """As torch_geometric's layers have, torchdiffeq's tests, and whole models in files."""
    beside_torch(f"""
from collections import OrderedDict
from torch.utils.hooks import RemovableHandle
FILE = {str(tmp_path / "file.pt")!r}
hooks = OrderedDict()
handle = RemovableHandle(hooks)
hooks[handle.id] = print
with RemovableHandle(hooks) as other:
    hooks[other.id] = repr
    say("two", lambda: len(hooks))
say("one", lambda: len(hooks))
handle.remove()
say("none", lambda: len(hooks))

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        ctx.how = how
        return 2 * x
    @staticmethod
    def backward(ctx, g):
        return 2 * g, None
y = Twice.apply(torch.ones(2, requires_grad=True), "doubled")
say("left in ctx", lambda: [y.grad_fn.how, hasattr(y.grad_fn, "other"), hasattr((y + 1).grad_fn, "how")])

def through_file():
    torch.save({{"kinds": [int, str, range], "x": torch.ones(1)}}, FILE)
    return [kind.__name__ for kind in torch.load(FILE, weights_only=False)["kinds"]]
say("file", through_file)
say("layouts", lambda: [str(torch.strided), repr(torch.sparse_csr), f"{{torch.channels_last}}"])
x, ends = torch.tensor([[1.0, -2.0], [3.0, 4.0], [5.0, 0.0]]), torch.tensor([0, 2, 2, 3])
say("segments", lambda: [torch._segment_reduce(x, "amax", offsets=ends), torch._segment_reduce(x, "mean", offsets=ends, initial=0)])
""")


def test_graphs_record_assertions():
    beside_torch("""
from torch.fx import symbolic_trace
def f(x):
    torch._assert(x.shape[-1] == 3, "three columns")
    return 2 * x
graph = symbolic_trace(f)
say("value", lambda: graph(torch.ones(1, 3)))
say("refused", lambda: graph(torch.ones(1, 2)))
say("plain", lambda: [torch._assert(torch.ones(1) > 0, ""), torch._assert(1, "")])
""")


def test_graphs_have_einsum_with_its_operands():
    """e3nn's code is made of such graphs, whose nodes are read as (equation, *operands)."""
    beside_torch("""
from torch.fx import symbolic_trace
def f(x, y):
    return torch.einsum("ij,j->i", (x, y)) + torch.einsum("ij,j->i", [x, y])
graph = symbolic_trace(f)
say("arguments", lambda: [len(node.args) for node in graph.graph.nodes])
say("value", lambda: graph(torch.arange(4.0).reshape(2, 2), torch.ones(2)))
""")


def test_gradients_of_each_sample_by_expanded_weights():
    beside_torch("""
from torch import nn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 4)
    def forward(self, x):
        return self.map(torch.tanh(self.map(x)))
def gradients(make, shape, reduction="sum"):
    torch.manual_seed(0)
    module, x = make().double(), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    losses = call_for_per_sample_grads(module, loss_reduction=reduction)(x).square().flatten(1).sum(1)
    getattr(losses, reduction)().backward()
    return [[p.grad_sample for p in module.parameters()], [p.grad for p in module.parameters()], x.grad]
say("rows", lambda: gradients(lambda: nn.Linear(4, 3), (5, 2, 4)))
say("mean", lambda: gradients(lambda: nn.Linear(4, 3), (5, 4), "mean"))
say("images", lambda: gradients(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3)), (3, 1, 4, 4)))
say("twice", lambda: gradients(Twice, (3, 4)))
def again():
    layer = nn.Linear(4, 3)
    layer.bias.requires_grad_(False)
    call_for_per_sample_grads(layer)(torch.ones(2, 4)).sum().backward()
    seen = hasattr(layer.bias, "grad_sample"), layer.weight.grad_sample.shape
    try:
        call_for_per_sample_grads(layer)
    except RuntimeError:
        return seen
say("again", again)
def refused(*args, **kwargs):
    try:
        call_for_per_sample_grads(*args, **kwargs)(torch.ones(2, 4))
    except RuntimeError:
        return True
say("refused", lambda: [refused(3), refused(nn.Linear(4, 2), loss_reduction="max"), refused(nn.Linear(4, 2), batch_size=0)])
""", 1e-12)


def test_steps_of_a_history_take_hooks():
    beside_torch("""
a, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 5.0], requires_grad=True)
y, seen = a * b, []
y.grad_fn.register_prehook(lambda outputs: (outputs[0] + 1,))
y.grad_fn.register_hook(lambda inputs, outputs: (seen.append([list(inputs), list(outputs)]), (inputs[0] * 10, inputs[1]))[1])
leaf = y.grad_fn.next_functions[0][0]
say("one", lambda: [y.grad_fn is y.grad_fn, leaf is y.grad_fn.next_functions[0][0], leaf.variable is a])
leaf.register_hook(lambda inputs, outputs: seen.append([list(inputs), list(outputs), a.grad.clone()]))
leaf.register_prehook(lambda outputs: (outputs[0] / 2,))
y.sum().backward()
say("seen", lambda: seen)
say("gradients", lambda: [a.grad, b.grad])
y.grad_fn.metadata["mark"] = 1
say("metadata", lambda: [y.grad_fn.metadata, isinstance(y.grad_fn, torch.autograd.graph.Node)])
""")


def test_optimizers_that_programs_write_keep_their_state():
    """State that is no tensor is loaded as what it is; `__setstate__` is asked, hooks are there for what patches steps."""
    beside_torch("""
import copy, io, pickle
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("newer", 7)
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, nothing=None, by={0.5: torch.zeros_like(p)}, rows=[torch.zeros(2), torch.zeros(3)],
                                 pair=(1, torch.ones(1)))
                state["step"] += 1
                state["by"][0.5].mul_(0.5).add_(p.grad)
                p.data.sub_(state["by"][0.5], alpha=group["lr"])
p = torch.nn.Parameter(torch.ones(2))
def stepped(optimizer):
    p.grad = torch.ones(2)
    optimizer.step()
    return optimizer
def shown(optimizer):
    state = next(iter(optimizer.state.values()))
    return [type(state["step"]).__name__, state, sorted(optimizer.param_groups[0]), list(state["by"])]
first = stepped(Own([p]))
say("loaded", lambda: (lambda o: (o.load_state_dict(copy.deepcopy(first.state_dict())), shown(stepped(o)))[1])(Own([p])))
say("over", lambda: (lambda o: (o.load_state_dict(copy.deepcopy(first.state_dict())), shown(stepped(o)))[1])(stepped(Own([p]))))
say("copied", lambda: shown(copy.deepcopy(first)))
say("pickled", lambda: shown(pickle.loads(pickle.dumps(first))))
def patched():
    seen, optimizer = [], Own([p])
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer._patch_step_function()
    stepped(optimizer)
    called = torch.optim.Optimizer.profile_hook_step(lambda self, closure=None: 5)(optimizer)
    return seen, called
say("patched", patched)
""")
