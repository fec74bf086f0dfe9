"""torch.fx under the hook, beside torch: code, listings, results and errors are equal."""

from __future__ import annotations

import subprocess
import sys

from tests.torch_api.both import ROOT, beside_torch, reports

FIRST = """
import builtins, copy, math, operator, pickle
import torch.nn.functional as F
from torch import fx, nn
torch.manual_seed(0)
x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
def shown(graph):
    return [str(graph), [(n.op, n.name, list(n.users), str(n.args), str(n.kwargs)) for n in graph.nodes]]
def all_of(module, *args):
    "Code, listing and result."
    return module.code, shown(module.graph), module(*args)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.param = nn.Parameter(torch.ones(2, 3) / 3)
        self.linear = nn.Linear(3, 5)
        self.seq = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
        self.register_buffer("offset", torch.arange(4.0))
        for i, p in enumerate(self.parameters()):
            p.data.copy_(torch.sin(torch.arange(float(p.numel())) + i).reshape(p.shape))
    def forward(self, x):
        return self.seq(self.linear(x + self.param).clamp(min=0.0, max=1.0)) * 2 + self.offset
"""


def test_code_and_listings():
    beside_torch(FIRST + """
def everything(x, y: torch.Tensor = None, *rest):
    rows, columns = x.shape
    a = F.relu(x) + torch.relu(x) + F.softmax(x, dim=-1) + F.dropout(x, 0.5, training=False) + F.gelu(x)
    b = torch.cat([a, x], 1)[:, 0:3] / torch.linalg.norm(x, dim=1, keepdim=True)
    c = torch.einsum("ij->i", b) ** 2 // 1 % 7
    d = torch.split(x, 1)[0] + F.layer_norm(x, (3,)) @ x.T.t().T
    return {"c": c, "rest": [x.size(0), -x, 3 - x, x.view(rows, columns).mean(-1), x > 0, ~(x == 1), abs(x), (d,)], "y": y}
say("net", lambda: all_of(fx.symbolic_trace(Net()), x))
say("everything", lambda: all_of(fx.symbolic_trace(everything), torch.eye(3)))
say("keywords", lambda: all_of(fx.symbolic_trace(lambda x, *, scale=2.0: x * scale), x))
def typed(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    return x.sum(dim=n - 1)
say("typed", lambda: all_of(fx.symbolic_trace(typed), x, 2))
def written(x):
    y = x.clone()
    y[0] = 1.0
    y += 1
    z = x.to(torch.float64).reshape([3, -1]), math.sqrt(4.0), x.dtype
    return y, z
say("written", lambda: all_of(fx.symbolic_trace(written), x))
say("constants", lambda: all_of(fx.symbolic_trace(lambda x: torch.ones(3) + x * torch.full((3,), 2.0)), x))
say("names", lambda: all_of(fx.symbolic_trace(lambda input, len: torch.add(input, other=len) + operator.mul(input, len)), x, x))
def losses(x, y):
    return F.log_softmax(x, 1), F.linear(x, y), F.pad(x, (1, 1)), F.normalize(x, dim=0), torch.sigmoid(x), x.relu().exp()
say("functions", lambda: [fx.symbolic_trace(losses).code.replace(", out = None", ""), fx.symbolic_trace(losses)(x, x)])
class Trees(nn.Module):
    def forward(self, x):
        out = 0
        for v in x.values():
            out += v
        return out
gm = fx.symbolic_trace(Trees(), concrete_args={"x": {"a": fx.PH, "b": fx.PH, "c": fx.PH}})
say("trees", lambda: [gm.code, gm({"a": 1, "b": 2, "c": 4})])
def branch(a, b):
    if b == True:
        return a
    return a * 2
say("concrete", lambda: all_of(fx.symbolic_trace(branch, concrete_args={"b": False}), 3, False))
say("specialized", lambda: fx.symbolic_trace(branch, concrete_args={"b": False})(3, True))
""", 1e-5)


def test_errors_of_control_flow():
    beside_torch(FIRST + """
def loops(x):
    return [row for row in x]
def asks(x):
    return x if x.sum() > 0 else -x
def unpacks(x):
    a, b = x
    return a + b
say("if", lambda: fx.symbolic_trace(asks))
say("loop", lambda: fx.symbolic_trace(loops))
say("star", lambda: fx.symbolic_trace(lambda x: torch.stack([*x])))
say("len", lambda: fx.symbolic_trace(lambda x: len(x)))
say("unpacked", lambda: all_of(fx.symbolic_trace(unpacks), x))
say("kind", lambda: [issubclass(fx.proxy.TraceError, ValueError)])
say("argument", lambda: fx.symbolic_trace(lambda x: x + object()))
g = fx.symbolic_trace(lambda x: x + 1).graph
say("users", lambda: g.erase_node(next(iter(g.nodes))))
class Foreign(nn.Module):
    def forward(self, x):
        return other(x)
other = nn.Linear(3, 3)
say("foreign", lambda: fx.symbolic_trace(Foreign()))
say("after", lambda: [hasattr(builtins.len, "__wrapped__"), other(x).shape == (2, 3)])
def unordered():
    g = fx.Graph()
    a = g.placeholder("a")
    b = g.call_function(torch.relu, (a,))
    c = g.call_function(torch.neg, (b,))
    b.args = (c,)
    try:
        g.lint()
    except RuntimeError as error:
        return str(error).split("!")[0]
say("lint", unordered)
say("missing", lambda: fx.GraphModule({}, fx.Tracer().trace(nn.Linear(3, 3))))
""")


def test_graphs_are_made_and_changed():
    beside_torch(FIRST + """
def made():
    g = fx.Graph()
    a = g.placeholder("a")
    b = g.placeholder("b", default_value=2)
    w = g.get_attr("w.inner")
    c = g.call_function(torch.add, (a, w), {"alpha": b})
    with g.inserting_before(c):
        d = g.call_method("neg", (a,))
    with g.inserting_after(c):
        e = g.call_module("act", (c,))
    g.output((c, e, d))
    g.lint()
    gm = fx.GraphModule({"w.inner": torch.ones(3), "act": nn.ReLU()}, g)
    return all_of(gm, x), [n.name for n in reversed(g.nodes)], c.next.name, c.prev.name, [n.name for n in c.all_input_nodes]
say("made", made)
def changed():
    gm = fx.symbolic_trace(lambda x, y: torch.add(x, y).relu() + torch.add(y, x))
    for n in gm.graph.nodes:
        if n.op == "call_function" and n.target is torch.add:
            with gm.graph.inserting_after(n):
                new = gm.graph.call_function(torch.mul, n.args, n.kwargs)
                n.replace_all_uses_with(new)
            gm.graph.erase_node(n)
    gm.graph.lint()
    gm.recompile()
    return all_of(gm, x, x + 1)
say("changed", changed)
def targets():
    gm = fx.symbolic_trace(lambda x: torch.add(x, 1))
    for node in gm.graph.nodes:
        if node.op == "call_function":
            node.target = torch.sub
            node.update_arg(1, 5)
            node.insert_arg(1, x)
            node.args, node.kwargs = node.args[:2], {"alpha": 2}
            node.update_kwarg("alpha", 3)
    gm.recompile()
    return all_of(gm, x)
say("targets", targets)
def decomposed():
    rules = {F.relu: lambda x, inplace=False: (x > 0) * x}
    graph, env, new = fx.Tracer().trace(lambda x: F.relu(x) + 1), {}, fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(new)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in rules:
            args = [fx.Proxy(env[a.name], tracer) if isinstance(a, fx.Node) else a for a in node.args]
            env[node.name] = rules[node.target](*args).node
        else:
            env[node.name] = new.node_copy(node, lambda n: env[n.name])
    return all_of(fx.GraphModule(nn.Module(), new), x)
say("decomposed", decomposed)
def dead():
    gm = fx.symbolic_trace(lambda x: (x + 1, x * 2, torch.rand(2) + x)[1])
    return gm.graph.eliminate_dead_code(), gm.graph.eliminate_dead_code(), shown(gm.graph), gm.recompile().src
say("dead", dead)
class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.ModuleList([nn.ReLU(), nn.Tanh()]), nn.Tanh()
    def forward(self, x):
        return self.a[0](self.b(x))
def submodules():
    gm = fx.symbolic_trace(Nested())
    found = [gm.add_submodule("c.d", nn.ReLU()), gm.delete_submodule("x.y"), [n for n, _ in gm.named_modules()]]
    gm.delete_all_unused_submodules()
    return found, [n for n, _ in gm.named_modules()], gm.delete_submodule("b"), type(gm).__name__, repr(gm)
say("submodules", submodules)
def copied():
    gm = fx.symbolic_trace(Net().eval())
    twice, saved = copy.deepcopy(gm), pickle.loads(pickle.dumps(gm))
    gm.graph.erase_node(list(gm.graph.nodes)[-1])
    return [(all_of(m, x), m.training, list(m.state_dict())) for m in (twice, saved)]
say("copied", copied)
def generated():
    g = fx.symbolic_trace(lambda x: x + 1)
    g.graph.on_generate_code(lambda before: (lambda body: ["print('first')\\\\n", *body]))
    return g.recompile().src
say("generated", generated)
def pattern():
    gm = fx.symbolic_trace(lambda x, w1, w2: torch.stack([torch.cat([w1, w2]).sum() + x, torch.cat([w2, w1]).sum()]))
    found = fx.replace_pattern(gm, lambda a, b: torch.cat([a, b]).sum(), lambda a, b: torch.stack([a, b]).max())
    return len(found), sorted(str(n) for n in found[0].nodes_map), all_of(gm, torch.tensor(1.0), x, x + 1)
say("pattern", pattern)
""".replace("\\\\n", "\\n"), 1e-5)


def test_tracers_interpreters_and_wrapped_functions():
    beside_torch(FIRST + """
@fx.wrap
def ours(x, y):
    return x * x if x.sum() > 0 else y
fx.wrap("len")
def uses(x):
    return ours(x, len(x)) + math.sqrt(x.sum())
say("wrapped", lambda: [str(fx.symbolic_trace(uses).graph), fx.symbolic_trace(uses).code, uses(abs(x))])
def inside():
    fx.wrap("ours")
say("inside", inside)
class NoLeaf(fx.Tracer):
    def is_leaf_module(self, m, name):
        return isinstance(m, nn.Linear)
class AllLeaves(fx.Tracer):
    def is_leaf_module(self, m, name):
        return True
    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        node.meta["seen"] = kind
        return node
say("no leaf", lambda: all_of((lambda m: fx.GraphModule(m, NoLeaf().trace(m)))(Net()), x))
def leaves():
    graph = AllLeaves().trace(nn.Sequential(Net(), nn.Tanh()))
    return shown(graph), [n.meta["seen"] for n in graph.nodes]
say("leaves", leaves)
class Opens(fx.Tracer):
    def to_bool(self, proxy):
        return True
    def iter(self, proxy):
        return iter([proxy[0], proxy[1]])
say("opens", lambda: str(Opens().trace(lambda x: [r + 1 for r in x] if x else x)))
say("stack", lambda: [{k: (v[0], v[1].__name__) for k, v in n.meta.get("nn_module_stack", {}).items()}
                      for n in fx.symbolic_trace(Net()).graph.nodes if n.op.startswith("call")])
class Shapes(fx.Interpreter):
    def run_node(self, n):
        result = super().run_node(n)
        n.meta["shape"] = tuple(result.shape)
        return result
def shapes():
    gm = fx.symbolic_trace(Net())
    return Shapes(gm).run(x), [n.meta["shape"] for n in gm.graph.nodes], gm.graph.output_node().name
say("shapes", shapes)
class Swap(fx.Interpreter):
    def call_function(self, target, args, kwargs):
        return torch.neg(*args, **kwargs) if target == torch.sigmoid else super().call_function(target, args, kwargs)
    def call_method(self, target, args, kwargs):
        return args[0].sigmoid() if target == "neg" else super().call_method(target, args, kwargs)
class Swapped(fx.Transformer):
    call_function = lambda self, target, args, kwargs: (
        torch.neg(*args, **kwargs) if target == torch.sigmoid else super(Swapped, self).call_function(target, args, kwargs))
    call_method = lambda self, target, args, kwargs: (
        args[0].sigmoid() if target == "neg" else super(Swapped, self).call_method(target, args, kwargs))
gm = fx.symbolic_trace(lambda x: torch.sigmoid(x).neg())
say("swap", lambda: [Swap(gm).run(x), all_of(Swapped(gm).transform(), x)])
say("transform", lambda: all_of(fx.Transformer(fx.symbolic_trace(Net())).transform(), x))
def missing():
    try:
        fx.Interpreter(gm, garbage_collect_values=False).run()
    except RuntimeError as error:
        return str(error).splitlines()[:5]
say("missing", missing)
class Graded(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
    def forward(self, x):
        return (self.w * x).sum()
def gradients():
    gm = fx.symbolic_trace(Graded())
    gm(x).backward()
    return gm.w.grad, [n for n, _ in gm.named_parameters()]
say("gradients", gradients)
class Half(nn.Module):
    def forward(self, x):
        return F.batch_norm(x, None, None, training=True), x.shape[0]
say("norm", lambda: all_of(fx.symbolic_trace(Half()), x))
def fused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval()
    model[1].running_var.fill_(2.0)
    gm, image = fx.symbolic_trace(model), torch.ones(1, 1, 5, 5)
    before = gm(image)
    modules = dict(gm.named_modules())
    for node in gm.graph.nodes:
        if node.op == "call_module" and isinstance(modules[node.target], nn.BatchNorm2d):
            conv, norm = modules[node.args[0].target], modules[node.target]
            scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
            conv.weight = nn.Parameter(conv.weight * scale.reshape(-1, 1, 1, 1))
            conv.bias = nn.Parameter((conv.bias - norm.running_mean) * scale + norm.bias)
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return bool(torch.allclose(before, gm(image), atol=1e-5)), gm.code, str(gm.graph)
say("fused", fused)
""", 1e-5)


def test_a_table_of_nodes_is_printed():
    text = "import tracegrad.as_torch, torch; torch.fx.symbolic_trace(lambda x: x + 1).graph.print_tabular()"
    found = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert found.splitlines() == [
        "opcode         name    target                   args    kwargs",
        "-------------  ------  -----------------------  ------  --------",
        "placeholder    x       x                        ()      {}",
        "call_function  add     <built-in function add>  (x, 1)  {}",
        "output         output  output                   (add,)  {}",
    ]


def test_a_graph_is_traced():
    """A GraphModule is a module like others: its steps are fused."""
    found = reports(FIRST + """
gm = torch.compile(fx.symbolic_trace(Net()))
say("equal", lambda: bool(torch.allclose(gm(x), Net()(x), atol=1e-5)))
""", True)
    assert found == {"equal": True}


def test_a_tracer_with_a_trace_of_its_own():
    """As torch_geometric's, which takes what torch's own uses and lets calls of its classes be nodes, too."""
    beside_torch("""
import torch.fx._symbolic_trace as st
from torch.fx import Graph, GraphModule
class Sum(torch.nn.Module):
    def __call__(self, x):
        return x.sum(0)
class Tracer(torch.fx.Tracer):
    def is_leaf_module(self, module, *args, **kwargs):
        return not isinstance(module, torch.nn.Sequential)
    @st.compatibility(is_backward_compatible=True)
    def trace(self, root, concrete_args=None):
        self.root, fn = root, type(root).forward
        self.submodule_paths = {mod: name for name, mod in root.named_modules()}
        self.graph = Graph(tracer_cls=type(self))
        self.tensor_attrs = {v: k for k, v in vars(root).items() if isinstance(v, (torch.Tensor, st.ScriptObject))}
        assert isinstance(fn, st.FunctionType)
        fn_globals = fn.__globals__
        fn, args = self.create_args_for_root(fn, True, concrete_args)
        cache = {}
        @st.functools.wraps(st._orig_module_getattr)
        def get(mod, attr):
            return self.getattr(attr, st._orig_module_getattr(mod, attr), cache)
        @st.functools.wraps(st._orig_module_call)
        def call(mod, *args, **kwargs):
            st._autowrap_check(patcher, getattr(getattr(mod, "forward", mod), "__globals__", {}), self._autowrap_function_ids)
            return self.call_module(mod, lambda *a, **k: st._orig_module_call(mod, *a, **k), args, kwargs)
        with st._Patcher() as patcher:
            patcher.patch_method(torch.nn.Module, "__getattr__", get, deduplicate=False)
            patcher.patch_method(torch.nn.Module, "__call__", call, deduplicate=False)
            patcher.patch_method(Sum, "__call__", call, deduplicate=False)
            st._patch_wrapped_functions(patcher)
            st._autowrap_check(patcher, fn_globals, self._autowrap_function_ids)
            for module in self._autowrap_search:
                st._autowrap_check(patcher, module.__dict__, self._autowrap_function_ids)
            self.create_node("output", "output", (self.create_arg(fn(*args)),), {})
        self.submodule_paths = None
        return self.graph
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.sum = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), Sum()
        self.scale = torch.nn.Parameter(torch.ones(2))
    def forward(self, x):
        return self.sum(self.layers(x) * self.scale)
torch.manual_seed(0)
model = Model()
made = GraphModule(model, Tracer().trace(model))
x = torch.randn(4, 3)
say("nodes", lambda: [[n.op, str(n.target)] for n in made.graph.nodes if n.op != "call_function"])
say("values", lambda: [made(x), model(x)])
say("as before", lambda: ["__call__" in vars(Sum), type(model.sum(x)) is torch.Tensor])
""", tolerance=1e-6)


def test_shapes_of_nodes():
    """ShapeProp notes what each node gives; strides of views are those of their own memory here, so they are not compared."""
    beside_torch("""
from torch import fx
from torch.fx.passes.shape_prop import ShapeProp
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
    def forward(self, x):
        a, b = self.linear(x).chunk(2, 1)
        return torch.relu(a).t(), x.shape[0], b.double().max(1)
traced = fx.symbolic_trace(Net())
say("gives", lambda: [list(y.shape) if isinstance(y, torch.Tensor) else len(y) if isinstance(y, tuple) else y
                      for y in ShapeProp(traced).propagate(torch.ones(2, 3))])
def told(meta):
    if hasattr(meta, "memory_format"):
        return [list(meta.shape), str(meta.dtype), meta.requires_grad, meta.is_quantized]
    return [told(m) for m in meta] if isinstance(meta, tuple) else meta
for node in traced.graph.nodes:
    say(node.name, lambda: told(node.meta.get("tensor_meta")))
say("types", lambda: [node.meta["type"].__name__ for node in traced.graph.nodes][:4])
""")
