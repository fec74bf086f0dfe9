"""Sparse tensors under the hook, beside torch: values, layouts, gradients, what graph networks do with them, files, text."""

from __future__ import annotations

import pytest

from tests.torch_api.both import beside_torch, reports

START = """
import copy, io, pickle
from torch import nn
i, v = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]]), torch.tensor([3.0, 4.0, 5.0, 6.0])
def made(**options):
    return torch.sparse_coo_tensor(i, v.clone(), (2, 3), **options)
def parts(x):
    "The layout, shape and elements of what a call gives."
    if isinstance(x, (tuple, list)):
        return [parts(y) for y in x]
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach()
    return [str(x.layout).rpartition(".")[2], list(x.shape), (x.to_dense() if x.layout != torch.strided else x).double().tolist()]
d = torch.arange(6.0).reshape(3, 2)
"""
CALLS = """
s / 2;2 * s;s * 3;-s;s ** 2;s.pow(2);s.sqrt();s.abs();torch.relu(s);torch.nn.functional.relu(s);torch.isnan(s);s.log1p();s.bool()
s.to(torch.float64);s.double();s.float();s.type(torch.float64);s.clone();s.detach();s.data;s.cpu()
torch.ones(2, 3) + s;s * torch.ones(2, 3);torch.ones(3) * s;s + c;c + c;s - s;s * c;torch.add(s, c, alpha=2)
s[0];s[0, 2];s[:, 0];torch.cat([s, s]);torch.cat([s, c], 1);torch.stack([s, s]);s.unsqueeze(0);s.select(1, 2)
s.index_select(0, torch.tensor([1, 0, 1]));s.t();s.T;s.mT;s.permute(1, 0);s.transpose(0, 1);torch.zeros_like(s);s.new_zeros(2)
torch.sparse.softmax(s, 1);torch.sparse.log_softmax(s, 1);torch.sparse.softmax(s, 0);s.norm();s.any();s.sum();s.sum(0)
torch.sparse.sum(s, 1)
torch.sparse.sum(s);torch.sum(s, dim=1);c.sum(dim=(0, 1));s.abs().sum();torch.sparse.sum(s, dim=0, dtype=torch.float64)
s @ d;torch.mm(s, d);torch.sparse.mm(s, d);torch.spmm(s, d);torch.matmul(s, d);s @ d[:, 0];torch.mv(s, d[:, 0]);d.t() @ s.t()
torch.sparse.mm(s, s.t());s @ c.t();torch.bmm(torch.stack([s, s]), torch.stack([d, d + 1]))
torch.nn.functional.linear(s, torch.ones(4, 3))
torch.sparse.addmm(torch.ones(2, 2), s, d);torch.addmm(torch.ones(2, 2), s, d, beta=2, alpha=3)
torch.sparse.sampled_addmm(c.to_sparse_csr(), torch.ones(2, 2), d.t(), alpha=0.5)
s.to_dense();s.to_sparse();s.coalesce();s.to_sparse_csr();s.to_sparse_csc();s.to_sparse_csr().to_sparse_csc();s.to_sparse_csr().to_sparse()
s.to_sparse_csr() @ d;s.to_sparse_csr().t();s.to_sparse_csr() * 2;s.to_sparse_csr().t() @ d[:2];s.to_sparse_csr().to_dense()
[c.indices(), c.values(), s._indices(), s._values()];torch.ones(2, 3).sparse_mask(c);d.to_sparse();d.to_sparse(1);d.to_sparse_csr()
[s.to_sparse_csr().crow_indices(), s.to_sparse_csr().col_indices(), s.to_sparse_csr().values()]
[s.to_sparse_csc().ccol_indices(), s.to_sparse_csc().row_indices(), s.to_sparse_csc().values()]
[s.sparse_dim(), s.dense_dim(), s._nnz(), c._nnz(), s.dim(), s.size(1), list(s.shape), s.is_coalesced(), len(s)]
[s.is_sparse, s.is_sparse_csr]
[isinstance(s, torch.Tensor), isinstance(s, torch.sparse.FloatTensor), s.layout == torch.sparse_coo, s.requires_grad, s.is_leaf, s.numel()]
torch.sparse_coo_tensor((2, 2));torch.sparse_coo_tensor(i, v);torch.sparse_coo_tensor([[0, 1], [1, 0]], [1, 2.0], dtype=torch.float64)
torch.sparse_coo_tensor(indices=i, values=v, size=(2, 4));torch.sparse.FloatTensor(i, v, torch.Size([2, 3]))
torch.sparse.DoubleTensor(2, 3)
torch.sparse_csr_tensor(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (2, 3))
torch.sparse_csc_tensor(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]))
torch.sparse.spdiags(torch.arange(9.0).reshape(3, 3), torch.tensor([0, -1, 2]), (3, 4))
h;h.coalesce();h.to_dense();h * 2;h.sum(1);h.sum(0);torch.sparse.softmax(h, 1);torch.cat([h, h], 1);h.t() if h.sparse_dim() == 2 else 0
s.mul_(2);s.add_(c);s.sub_(s);s.div_(2);s.zero_();torch.ones(2, 3).add_(s);copy.deepcopy(s);pickle.loads(pickle.dumps(c))
""".strip().replace("\n", ";").split(";")


def test_values_and_layouts():
    lines = "".join(f"""
h = torch.sparse_coo_tensor(torch.tensor([[0, 1, 0]]), torch.arange(6.0).reshape(3, 2), (3, 2))
s = made(); c = s.coalesce()
say({call!r}, lambda: parts({call}))""" for call in CALLS)
    beside_torch(START + lines, 1e-6)


def test_text():
    ours, theirs = (reports(START + """
for name, x in dict(coo=made(), csr=made().to_sparse_csr(), double=made().double().coalesce(), leaf=made(requires_grad=True)).items():
    say(name, lambda: repr(x).split())
""", ours) for ours in (True, False))
    assert ours == theirs


test_text = pytest.mark.skipif("not __import__('importlib').util.find_spec('torch')")(test_text)


def test_gradients():
    beside_torch(START + """
def of(call, *leaves):
    "The value and the gradients: sparse ones as they are."
    y = call()
    (y.to_dense() if y.layout != torch.strided else y).mul(torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum().backward()
    # (torch has a dense gradient of a sparse matrix by `@`, and a sparse one by sparse.mm.)
    return [parts(x.grad.sparse_mask(x) if x.is_sparse and not x.grad.is_sparse else x.grad) for x in leaves]
s = made(requires_grad=True).coalesce().detach().requires_grad_()
w = d.clone().requires_grad_()
values = v.clone().requires_grad_()
for name, call in dict(mm=lambda: torch.sparse.mm(s, w), at=lambda: s @ w, transposed=lambda: s.t() @ w[:2], dense=lambda: s.to_dense() @ w,
                       csr=lambda: torch.sparse.mm(s.to_sparse_csr(), w), scaled=lambda: (s * 2) @ w, addmm=lambda: torch.sparse.addmm(
                           torch.ones(2, 2), s, w)).items():
    s.grad = w.grad = None
    say(name, lambda: of(call, s, w))
say("softmax", lambda: [s.__setattr__("grad", None), of(lambda: torch.sparse.softmax(s, 1), s)][1])
say("sum", lambda: [s.__setattr__("grad", None), of(lambda: torch.sparse.sum(s, 0), s)][1])
say("values", lambda: of(lambda: torch.sparse.mm(torch.sparse_coo_tensor(i, values, (2, 3)), d), values))
say("leaf", lambda: [made(requires_grad=True).is_leaf, torch.sparse_coo_tensor(i, values, (2, 3)).is_leaf, s.is_leaf])
say("grad", lambda: parts(torch.autograd.grad(torch.sparse.mm(s, w).sum(), (s, w))))
x = torch.eye(3).requires_grad_()
say("to_sparse", lambda: of(lambda: torch.sparse.mm(x.to_sparse(), d), x))
""", 1e-6)


def test_new_and_resize_as():
    """As optimizers make sparse tensors of a gradient's kind (SM3)."""
    beside_torch(START + """
s = made()
for k, make in enumerate((lambda: s.new(), lambda: s.new(2, 3), lambda: s.new(torch.Size([4])), lambda: s.new(i, v),
                          lambda: s.new(i, v, (3, 4)), lambda: s.new().resize_as_(s), lambda: s.double().new(i, v),
                          lambda: s.clone().resize_as_(torch.sparse_coo_tensor((4, 5))))):
    say(f"new {k}", lambda: [parts(make()), str(make().dtype), make()._nnz(), make().sparse_dim()])
""")


def test_resize_as_says_what_does_not_fit():
    said = reports(START + """
say("dense", lambda: made().resize_as_(torch.ones(2, 3)))
say("smaller", lambda: made().resize_as_(torch.sparse_coo_tensor((1, 3))))
""", ours=True)
    assert said["dense"].startswith("UnsupportedError: resize_as_: a sparse tensor is resized as another one")
    assert said["smaller"].startswith("ShapeError: resize_as_: (2, 3) with entries cannot become (1, 3)")


def test_graph_networks_train():
    """A convolution over a graph, normalized by degrees, with an attention whose Function saves a sparse matrix, and files."""
    beside_torch(START + """
import torch.nn.functional as F
torch.manual_seed(0)
n = 12
a = (torch.rand(n, n) < 0.25).float()
a = ((a + a.t() + torch.eye(n)) > 0).float().to_sparse()
degree = torch.sparse.sum(a, 1).to_dense()
scale = torch.sparse_coo_tensor(torch.arange(n).repeat(2, 1), degree ** -0.5, (n, n))
adjacency = torch.sparse.mm(torch.sparse.mm(scale, a), scale).coalesce()
class Spmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, indices, values, shape, b):
        m = torch.sparse_coo_tensor(indices, values, shape)
        ctx.save_for_backward(m, b)
        ctx.n = shape[0]
        return torch.matmul(m, b)
    @staticmethod
    def backward(ctx, grad):
        m, b = ctx.saved_tensors
        edges = m._indices()[0] * ctx.n + m._indices()[1]
        return None, grad.matmul(b.t()).reshape(-1)[edges], None, m.t().matmul(grad)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.attend = nn.Linear(5, 8), nn.Linear(8, 3), nn.Parameter(torch.randn(16))
        self.register_buffer("adjacency", adjacency)
    def forward(self, x):
        h = torch.relu(torch.sparse.mm(self.adjacency, self.first(x)))
        rows, columns = self.adjacency.indices()
        edge = torch.exp(-F.leaky_relu(torch.cat([h[rows], h[columns]], 1) @ self.attend))
        total = Spmm.apply(self.adjacency.indices(), edge, (n, n), torch.ones(n, 1))
        h = Spmm.apply(self.adjacency.indices(), edge, (n, n), h) / total
        return F.log_softmax(self.adjacency @ self.second(h), 1)
net, x, y = Net(), torch.randn(n, 5), torch.arange(n) % 3
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
losses = []
for _ in range(6):
    optimizer.zero_grad()
    loss = F.nll_loss(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
say("losses", lambda: losses)
say("weights", lambda: net.first.weight)
say("state", lambda: {k: parts(t) for k, t in net.state_dict().items()})
say("moved", lambda: parts(net.double().adjacency))
file = io.BytesIO()
torch.save({"a": adjacency, "r": adjacency.to_sparse_csr()}, file)
file.seek(0)
say("file", lambda: {k: parts(t) for k, t in torch.load(file, weights_only=False).items()})
""", 1e-5)


def test_errors_say_what_to_do():
    found = reports(START + """
s = made()
for name, call in dict(
    exp=lambda: s.exp(), number=lambda: s + 1, values=lambda: s.values(), dense=lambda: d.coalesce(),
    beyond=lambda: torch.sparse_coo_tensor(i, v, (2, 2)), sizes=lambda: torch.sparse_coo_tensor(i, v[:2]),
    shapes=lambda: s @ torch.ones(2, 2), crow=lambda: s.crow_indices(),
    rows=lambda: torch.sparse_csr_tensor([0, 3, 2], [0, 1], [1.0, 2.0]), array=lambda: s.numpy(), divided=lambda: 1 / s,
    mixed=lambda: torch.cat([s, d])).items():
    say(name, call)
""", True)
    for name, words in dict(exp="exp to_dense", number="add to_dense", values="coalesce", dense="to_sparse", beyond="dimension 1 index 2",
                            sizes="indices values", shapes="(2, 3) (2, 2)", crow="crow_indices torch.sparse_csr", rows="rise",
                            array="numpy to_dense", divided="to_dense", mixed="to_dense").items():
        text = found[name]
        assert text.partition(":")[0].endswith(("Error", "IndexOutOfRange")), (name, text)
        for word in words.split(" ") if "(" not in words else [words[:6], words[7:]]:
            assert word in text, (name, text)


def test_products_reduced_by_each_name():
    beside_torch("""
a = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]).to_sparse_csr()
b = torch.tensor([[1.0, 5.0], [2.0, 2.0], [7.0, -1.0]])
say("reduced", lambda: [torch.sparse.mm(a, b, name).tolist() for name in ("sum", "mean", "amax", "amin", "max", "min")])
""")


def test_what_is_sparse_in_a_program_s_own_class():
    """torch.sparse.mm asks a class that computes its products itself; a product of two compressed matrices is compressed by rows."""
    beside_torch("""
class Edges(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)
        made.data_of = data
        return made
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return (torch.mm(args[0].data_of, args[1]),) * 2 if "_sparse_mm_reduce_impl" in str(func) else NotImplemented
say("asked", lambda: torch.sparse.mm(Edges(torch.eye(2) * 3), torch.ones(2, 2), "sum"))
a, b = torch.eye(3).to_sparse_csc(), torch.eye(3).to_sparse_csr()
say("layouts", lambda: [str((x @ y).layout) for x in (a, b, b.t()) for y in (a, b)])
""")


CUSTOM = START + """
class Product(torch.autograd.Function):
    "What graph networks write: the sparse matrix is an argument that is saved, and backward multiplies with its transpose."
    @staticmethod
    def forward(ctx, matrix, x, scale=1.0):
        ctx.save_for_backward(matrix)
        ctx.needed = ctx.needs_input_grad[0]
        return torch.mm(matrix, x) * scale
    @staticmethod
    def backward(ctx, grad):
        matrix, = ctx.saved_tensors
        return None, matrix.t() @ grad, None
"""


def test_a_sparse_argument_of_a_custom_function():
    beside_torch(CUSTOM + """
def gradient(matrix):
    x = d.clone().requires_grad_()
    y = Product.apply(matrix, x, 2.0)
    y.square().sum().backward()
    return y.tolist(), x.grad.tolist()
for name in ("to_sparse_coo", "to_sparse_csr"):
    say(name, lambda: gradient(getattr(made().to_dense(), name)()))
say("without", lambda: Product.apply(made(), d).tolist())
with torch.no_grad():
    say("no_grad", lambda: Product.apply(made().requires_grad_(), d).tolist())
""")


def test_a_sparse_argument_of_a_custom_function_that_requires_grad_is_refused():
    found = reports(CUSTOM + """
say("needs", lambda: Product.apply(made().requires_grad_(), d))
""", True)
    assert all(word in found["needs"] for word in ("Product.apply", "torch.sparse_coo", "requires grad", "values()")), found
