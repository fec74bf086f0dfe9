"""What packages' own test suites met under the hook: compiled modules, states by names, distributions and modules of programs' own."""

from __future__ import annotations

from tests.torch_api.both import beside_torch

PRINTED = '''
lines = []
def print(*values):
    lines.append(" ".join(map(str, values)))
'''


def test_a_compiled_module_is_a_module_around_the_other():
    beside_torch(PRINTED + '''
import torch, copy, io, pickle
from torch import nn
from torch._dynamo import OptimizedModule
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4); self.d = nn.BatchNorm1d(4); self.count = 0
    def forward(self, x):
        return self.d(self.a(x)).relu()
    def extra(self): return self.count + 1
torch.manual_seed(0)
n = Net()
m = torch.compile(n, backend="eager")
print(type(m).__name__, isinstance(m, OptimizedModule), isinstance(m, Net), m._orig_mod is n, list(m.state_dict()),
      [k for k, _ in m.named_modules()])
print(m)
m.count = 5; print(n.count, m.extra(), "count" in vars(m), hasattr(m, "nothing"), "extra" in dir(m))
m.eval()
print(n.training, m.training, n.d.training)
m.train()
print(n.training, m.training)
n.eval()
print(m.training)
m.training = True
print(n.training)
x = torch.arange(12.).reshape(4, 3)
y = m(x); y.sum().backward(); print(y.sum().item() > 0, [p.grad is not None for p in n.parameters()])
opt = torch.optim.SGD(m.parameters(), 0.1); opt.step(); opt.zero_grad()
other = torch.compile(Net(), backend="eager"); print(other.load_state_dict(m.state_dict())); print(torch.equal(other(x), m(x)))
print(m.a is n.a, len([*m.parameters()]), next(iter(m.named_parameters()))[0])
m.extra2 = nn.Linear(1, 1); print([k for k, _ in n.named_children()]); del m.extra2; print([k for k, _ in n.named_children()])
c = copy.deepcopy(n); print(type(c).__name__)
print(m.double() is m, n.a.weight.dtype)
s = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager"); print(len(s))
class Outer(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = torch.compile(nn.Linear(2, 2), backend="eager"); self.head = nn.Linear(2, 1)
    def forward(self, x): return self.head(self.inner(x))
o = Outer()
print(list(o.state_dict()), o)
torch.compile(o, backend="eager")(torch.ones(1, 2)).sum().backward()
print([p.grad is None for p in o.parameters()])
try: len(m)
except TypeError as e: print("TypeError")
h = m.register_forward_hook(lambda mod, i, out: print("hook", type(mod).__name__)); m(x.double()); h.remove()
say("lines", lambda: lines)
''')


def test_states_by_the_model_s_names():
    beside_torch(PRINTED + '''
import torch, copy
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict, set_state_dict
def groups(net, **options):
    named = [*net.named_parameters()]
    return [{"params": [p for n, p in named if "bias" in n], **options}, {"params": [p for n, p in named if "bias" not in n]}]
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.module = nn.Linear(3, 2); self.head = nn.Linear(2, 1); self.bn = nn.BatchNorm1d(2)
    def forward(self, x): return self.head(self.bn(self.module(x)))
def shown(x):
    if isinstance(x, dict): return {k: shown(v) for k, v in sorted(x.items())}
    if isinstance(x, (list, tuple)): return [shown(v) for v in x]
    return [round(v, 5) for v in x.double().reshape(-1).tolist()] if isinstance(x, torch.Tensor) else x
for wrap in (lambda m: m, lambda m: torch.compile(m, backend="eager")):
    net = wrap(Net())
    opt = torch.optim.AdamW(groups(net, weight_decay=0.0), lr=0.1)
    print(sorted(get_model_state_dict(net)))
    found = get_optimizer_state_dict(net, opt)
    print(found["param_groups"][0]["params"], shown(found["state"]["head.bias"]))
    for _ in range(2):
        opt.zero_grad(); net(torch.arange(12.).reshape(4, 3) ** 0.5).square().sum().backward(); opt.step()
    a, b = get_state_dict(net, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    a, b = copy.deepcopy(a), copy.deepcopy(b)
    print({k: shown(v) for k, v in sorted(b["state"].items())}, [sorted(g) for g in b["param_groups"]])
    other = Net()
    o2 = torch.optim.AdamW(groups(other), lr=0.7)
    print(set_state_dict(other, o2, model_state_dict=a, optim_state_dict=b))
    print([(g["lr"], g["weight_decay"]) for g in o2.param_groups])
    o2.zero_grad(); other(torch.arange(12.).reshape(4, 3) ** 0.5).square().sum().backward(); o2.step()
    print(shown(dict(other.state_dict())))
    net.head.weight.requires_grad = False
    try: print(sorted(get_model_state_dict(net, options=StateDictOptions(ignore_frozen_params=True))))
    except Exception as e: print(type(e))
    print(set_model_state_dict(other, {"head.bias": torch.ones(1)}, options=StateDictOptions(strict=False)))
    fresh = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9); del b["state"]["head.bias"]
    try: set_optimizer_state_dict(other, o2, b)
    except RuntimeError as e: print(e)
    print(shown(get_optimizer_state_dict(other, torch.optim.SGD(other.parameters(), lr=0.1))["state"]))
say("lines", lambda: lines)
''')


def test_private_names_that_subclasses_call():
    beside_torch(PRINTED + '''
import torch, pickle, copy, warnings
from torch import nn
from torch.distributions import Distribution, Normal, MultivariateNormal, Categorical, constraints
class Mine(Distribution):
    arg_constraints = {"loc": constraints.real}
    support = constraints.positive
    def __init__(self, loc, validate_args=None):
        self.loc = loc; super().__init__(loc.shape, torch.Size([]), validate_args)
    def rsample(self, sample_shape=torch.Size()):
        return torch.ones(self._extended_shape(sample_shape))
    def log_prob(self, value):
        if self._validate_args: self._validate_sample(value)
        return -value * self.loc
m = Mine(torch.ones(3)); print(m.rsample((2,)).shape, type(m._extended_shape((2,))).__name__, m.log_prob(torch.ones(3)))
for bad in (-torch.ones(3), torch.ones(4), 3.0):
    try: m.log_prob(bad); print("no")
    except ValueError as e: print("ValueError")
print(Categorical(torch.ones(3))._validate_sample(torch.tensor(2)), Normal(0.0, 1.0)._extended_shape(torch.Size([4])))
print(MultivariateNormal(torch.zeros(2), torch.eye(2))._extended_shape())
class NoSupport(Distribution):
    arg_constraints = {}
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always"); NoSupport(torch.Size([2]), validate_args=False)._validate_sample(torch.ones(2)); print(len(w))
class Old(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("n", torch.tensor(3))
        self._register_load_state_dict_pre_hook(self.hook)
    def hook(self, state, prefix, *rest):
        if prefix + "v" in state:
            state[prefix + "w"] = state.pop(prefix + "v")
o = pickle.loads(pickle.dumps(Old())); print(o.load_state_dict({"v": torch.zeros(2), "n": torch.tensor(1)}), o.w.tolist())
try: o.nothing
except AttributeError as e: print(e)
o.double(); print(o.n.dtype, o.w.dtype); p = o.w; o.type(torch.float32); print(o.n.dtype, o.w.dtype, o.w is p, o.w.requires_grad)
l = nn.ModuleList([nn.ReLU(), nn.Tanh()]); print(l._get_abs_string_index(-1), l._get_abs_string_index(0))
try: l._get_abs_string_index(5)
except IndexError: print("IndexError")
from torch import fx
gm = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 3))); print(type(gm).__name__, type(gm).__qualname__)
from torch.utils.data.datapipes.iter.combinatorics import ShufflerIterDataPipe
print(isinstance(3, ShufflerIterDataPipe))
print(torch.zeros(1, device="cpu:0").device.type, torch.ones(2).to("cpu:0").device.type)
d = torch.device("cuda:1")
print(d, repr(d), d.index, d == torch.device("cuda"), d == torch.device("cuda", 1), torch.device(0))
print(torch.device("cuda").index, repr(torch.device("cuda")))
print(pickle.loads(pickle.dumps(d)), pickle.loads(pickle.dumps(torch.device("cpu"))))
print(torch.multiprocessing.set_sharing_strategy("file_system"))
say("lines", lambda: lines)
''')
