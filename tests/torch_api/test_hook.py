"""Programs written for torch under `import tracegrad.as_torch`, each in a process of its own: the hook is for the whole process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tracegrad.torch_api.modules import ABSENT, sources

ROOT = Path(__file__).parents[2]


def python(*arguments, code=0, cwd=None):
    """What a Python process prints; errors are printed, too."""
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=cwd,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def program(text, code=0):
    return python("-c", "import tracegrad.as_torch\n" + textwrap.dedent(text), code=code)


def test_a_script_trains():
    assert "less" in program("""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F
        from torch.utils.data import DataLoader, TensorDataset
        from torch.optim.lr_scheduler import StepLR

        torch.manual_seed(0)
        x = torch.randn(64, 5)
        data = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = StepLR(optimizer, 2)
        losses = []
        for epoch in range(4):
            for a, b in data:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(a.to(device)), b.to(device))
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
            scheduler.step()
        assert isinstance(loss, torch.Tensor) and not loss.requires_grad_(True).is_cuda
        print("less" if losses[-1] < losses[0] else losses)
    """)


def test_modules_have_torchs_names():
    """What is asked for by torch's own paths is tracegrad's, and one object whatever path it comes by."""
    program("""
        import torch, tracegrad
        from torch.nn.modules.batchnorm import BatchNorm2d, _BatchNorm
        from torch.nn.modules.conv import _ConvNd
        from torch.nn.modules.utils import _pair
        from torch.nn.modules.module import Module
        from torch import nn, Tensor
        import torch.utils.checkpoint, torch.linalg, torch.fft, torch.autograd.functional, torch.optim.lr_scheduler
        assert isinstance(BatchNorm2d(3), _BatchNorm) and isinstance(nn.Conv2d(1, 1, 1), _ConvNd)
        assert Module is nn.Module is tracegrad.nn.Module
        assert Tensor is tracegrad.Tensor and _pair(2) == (2, 2) == _pair([2, 2]) and torch.nn is nn
        assert torch.float32.is_floating_point and torch.complex64.is_complex and not torch.uint8.is_signed
        assert isinstance(torch.device("cpu"), torch.device) and torch.device("meta").type == "meta" and torch.device("cpu").index is None
        assert isinstance(torch.ones(2), torch.FloatTensor) and not isinstance(torch.ones(2), torch.LongTensor)
        assert torch.LongTensor([1, 2]).dtype == torch.int64 and torch.FloatTensor(2, 3).shape == (2, 3)
        assert torch.__version__.startswith("2.") and torch.version.cuda is None
        assert torch.finfo(torch.float8_e4m3fn).max == 448 and torch.iinfo(torch.int8).max == 127
        with torch.device("numpy"):
            assert torch.ones(2).device.name == "numpy"
        assert torch.ones(2).device.name != "numpy"
        import importlib.metadata, importlib.util
        assert torch.distributed.is_available() == (importlib.util.find_spec("mpi4py") is not None)
        assert importlib.metadata.version("torch") == torch.__version__ and importlib.util.find_spec("torch") is not None
    """)


def test_what_is_not_here_says_so():
    program("""
        import torch, tracegrad
        assert not hasattr(torch, "sparse_bsr_tensor")
        try:
            torch.sparse_bsr_tensor
        except AttributeError as error:
            assert "docs/torch.md" in str(error)
        try:
            import torch.package
        except ModuleNotFoundError as error:
            assert error.name == "torch.package" and "docs/torch.md" in str(error)
        assert not isinstance(torch.ones(2), torch.ScriptObject)
        try:
            torch.ScriptObject(3)
        except tracegrad.UnsupportedError as error:
            assert "torch.ScriptObject" in str(error)
        else:
            raise AssertionError
        try:
            torch.zeros(2, device=torch.device("cuda"))
        except tracegrad.TracegradError as error:
            assert "cuda" in str(error)
        else:
            raise AssertionError
    """)


def test_torch_that_was_imported_is_not_replaced():
    text = python("-c", "import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import tracegrad.as_torch", code=1)
    assert "TracegradError: as_torch: torch is imported already" in text


def test_importing_tracegrad_installs_nothing():
    text = "import sys, tracegrad, tracegrad.torch_api.hook as hook; print([f for f in sys.meta_path if isinstance(f, hook.Finder)])"
    assert python("-c", text) == "[]\n"


SCRIPT = """
import argparse, sys
import torch
from beside import NUMBER
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
print(__name__, parser.parse_args().epochs, NUMBER, torch.zeros(2, device="cuda" if torch.cuda.is_available() else "cpu").device.type,
      torch.cuda.is_available(), torch.cuda.device_count(), torch.device("cuda:0").type,
      torch.zeros(2).cuda().device.type if torch.cuda.is_available() else "none")
"""


def test_run(tmp_path):
    """Scripts and modules run with their arguments, their folder on the path, and CUDA's names lead to the device that was named."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NUMBER = 7")
    run = "-m", "tracegrad", "run"
    assert python(*run, str(tmp_path / "train.py"), "--epochs", "3") == "__main__ 3 7 cpu False 0 cuda none\n"
    text = python(*run, "--device", "numpy", "-m", "train", "--epochs", "4", cwd=tmp_path)
    assert "__main__ 4 7 cpu True 1 cpu cpu\n" in text
    assert "tracegrad: 'cuda' and 'mps' are numpy" in text
    assert "no script 'nothing.py'" in python(*run, "nothing.py", code=1)


def test_an_error_in_a_script_has_its_traceback(tmp_path):
    (tmp_path / "wrong.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    text = python("-m", "tracegrad", "run", str(tmp_path / "wrong.py"), code=1)
    assert all(words in text for words in ("Traceback", "wrong.py:2", "ShapeError"))


def test_compile_traces():
    program("""
        import torch, tracegrad
        f = torch.compile(lambda x: (x * x).sum(), mode="reduce-overhead")
        assert f(torch.arange(3.)).item() == 5 and "kernel" in str(f.kernels())
        model = torch.compile(torch.nn.Linear(3, 2), backend="inductor")
        assert isinstance(model._orig_mod, torch.nn.Linear) and model(torch.ones(4, 3)).shape == (4, 2)
        @torch.compile(fullgraph=True)
        def g(x):
            return x + 1
        assert g(torch.ones(1)).item() == 2 and not torch.compiler.is_compiling()
    """)


def test_custom_operations():
    program("""
        import torch
        @torch.library.custom_op("mine::square", mutates_args=())
        def square(x: torch.Tensor) -> torch.Tensor:
            return x * x
        @square.register_fake
        def _(x):
            return torch.empty_like(x)
        def setup(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
        square.register_autograd(lambda ctx, g: 3 * ctx.saved_tensors[0] * g, setup_context=setup)
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        torch.ops.mine.square(x).sum().backward()
        assert x.grad.tolist() == [3.0, 6.0] and not hasattr(torch.ops.mine, "cube")
    """)


def test_functions_for_devices_that_are_not_here_are_left_out():
    """spikingjelly registers one for CUDA after the one for the CPU."""
    program("""
        import torch
        library = torch.library.Library("theirs", "DEF")
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: 2 * x, "CPU")
        library.impl("double", lambda x: x.nothing, "CUDA")
        library.impl("only", lambda x: x + 1, "CUDA")                 # there is no other
        torch.library.impl("theirs::double", "cuda", lambda x: x.nothing)
        assert torch.ops.theirs.double(torch.ones(1)).item() == torch.ops.theirs.only(torch.ones(1)).item() == 2
        assert torch.library.triton_op("theirs::same", mutates_args=())(lambda x: torch.library.wrap_triton(x))(3) == 3
    """)


def test_parts_that_other_libraries_derive_from():
    """tensordict's seeds of workers and blocks, fastai's stages of a scaler."""
    program("""
        import torch
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.distributed._composable.fsdp import FSDPModule, fully_shard
        from torch.amp.grad_scaler import GradScaler, OptState, _refresh_per_optimizer_state
        from torch.utils._contextlib import _DecoratorContextManager, _NoParamDecoratorContextManager
        from torch.utils.data._utils.worker import _generate_state
        assert _generate_state(1234567890123, 3) == [911343142, 720453872, 3335628216, 1002736992]      # what torch makes
        assert _refresh_per_optimizer_state()["stage"] is OptState.READY and GradScaler is torch.amp.GradScaler
        inside = []
        class block(_NoParamDecoratorContextManager):
            def __enter__(self):
                inside.append(self)
            def __exit__(self, *error):
                inside.pop()
        @block
        def plain():
            return len(inside)
        @block()
        def called():
            return len(inside)
        with block(), unset_fake_temporarily():
            assert len(inside) == 1 and plain() == called() == 2
        assert issubclass(block, _DecoratorContextManager) and not inside and fully_shard is torch.distributed.fsdp.fully_shard
    """)


def test_attention_by_functions_of_places():
    """flex_attention equals scaled_dot_product_attention with the mask, the bias and the grouped heads that its functions say."""
    program("""
        import torch
        import torch.nn.functional as F
        from torch.nn.attention.flex_attention import and_masks, create_block_mask, create_mask, flex_attention
        torch.manual_seed(0)
        q, k, v = torch.randn(2, 4, 6, 8, requires_grad=True), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
        causal = lambda b, h, i, j: i >= j
        near = lambda b, h, i, j: i - j < 3
        mask = create_block_mask(and_masks(causal, near), None, None, 6, 6)
        bias = torch.randn(4)
        y = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h] * (i - j), block_mask=mask, enable_gqa=True)
        i, j = torch.arange(6)[:, None], torch.arange(6)
        dense = create_mask(and_masks(causal, near), None, None, 6, 6)
        full = torch.where(dense, bias[:, None, None] * (i - j), -float("inf"))
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=full, enable_gqa=True)
        assert torch.allclose(y, z, atol=1e-6)
        a, = torch.autograd.grad(y.square().sum(), q)
        b, = torch.autograd.grad(z.square().sum(), q)
        assert torch.allclose(a, b, atol=1e-5)
        none = flex_attention(q, q, q, block_mask=create_block_mask(lambda b, h, i, j: (i > 2) & (j < 9), None, None, 6, 6))
        assert none[:, :, :3].abs().max() == 0
    """)


def test_associative_scan():
    program("""
        import torch
        from torch._higher_order_ops.associative_scan import associative_scan
        x = torch.randn(3, 7, dtype=torch.float64)
        assert torch.allclose(associative_scan(torch.add, x, 1), x.cumsum(1))
        assert torch.allclose(associative_scan(torch.add, x, 1, reverse=True), x.flip(1).cumsum(1).flip(1))
        decay, add = torch.rand(7), torch.randn(7)
        combine = lambda one, two: (one[0] * two[0], one[1] * two[0] + two[1])
        h, want = torch.zeros(()), []
        for a, b in zip(decay, add):
            h = a * h + b
            want.append(h)
        assert torch.allclose(associative_scan(combine, (decay, add), 0)[1], torch.stack(want), atol=1e-6)
    """)


def test_compiled_functions_look_at_their_floats():
    """Recorded for each value from then on, as torch specializes; after eight values the function runs as it is. Others stay run-time."""
    program("""
        import math, torch
        import torch.nn.functional as F
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        def f(x, p, *, q):
            y = x * w + 10 if p > 0.5 else x * w
            return y * math.sqrt(q["q"]), p
        compiled = torch.compile(f)
        def check(p, q, x=torch.tensor([3.0, 4.0])):
            (a, given), (b, _) = compiled(x, p, q={"q": q}), f(x, p, q={"q": q})
            assert torch.allclose(a, b) and (given, type(given)) == (p, type(p))
            assert torch.allclose(*(torch.autograd.grad(v.sum(), w)[0] for v in (a, b)))
        for _ in range(3):
            for p, q in ((0.1, 1.0), (0.9, 1.0), (0.9, 4.0), (1, 4.0)):
                check(p, q)
        assert len(compiled.compilations) == 4
        with torch.no_grad():
            w.mul_(2)
        check(0.9, 4.0)
        check(0.9, 4.0, torch.ones(3, 2))
        for i in range(12):
            check(i / 12, 1.0)
        assert len(compiled.compilations) == 9, compiled.compilations          # of eight values, and of another shape
        assert compiled.compilations[1] == "p was 0.1 and is 0.9"
        x = torch.tensor([[1.0, 2.0]])
        assert torch.compile(lambda x, p: F.dropout(x, p))(x, 0.0).equal(x)
        assert torch.compile(lambda x, p: x.norm(p))(x, 1.0) == 3
        assert torch.compile(lambda x, s: F.interpolate(x[None], scale_factor=s))(x, 2.0).shape == (1, 1, 4)
        class Net(torch.nn.Module):
            def forward(self, x, p):
                return x * 2 if p > 0.5 else x
        net = Net()
        net.compile()
        assert net(x, 0.9).equal(x * 2) and net(x, 0.1).equal(x)
        scaled = torch.compile(lambda x, s: x.reshape(x.numel()) * s if x.ndim else x.reshape(7))
        try:
            scaled(torch.tensor(1.0), 0.5)
        except RuntimeError as error:
            assert "reshape" in str(error), error
        else:
            raise AssertionError("not refused")
        for k in range(12):
            assert scaled(x, k / 8)[1] == k / 4
        assert len(scaled.compilations) == 1
    """)


def test_control_flow_by_torchs_paths():
    """torch's signatures: carried_inputs by place, the scanned dimension; a package's function is not hidden by the module of its name."""
    program("""
        import torch
        import torch._higher_order_ops as ops
        from torch._higher_order_ops.cond import cond
        from torch._higher_order_ops.map import map as each
        from torch._higher_order_ops.scan import scan
        from torch._higher_order_ops.while_loop import while_loop
        def check(xs, c):
            for loop in (torch.while_loop, while_loop, ops.while_loop):
                i, y = loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), c))
                assert i == 3 and torch.equal(y, c * 8)
            for reverse in (False, True):
                last, ys = scan(lambda c, x: (c * x.sin() + x, c * 2), c, xs, dim=1, reverse=reverse)
                carry, want = c, {}
                for k in (range(3, -1, -1) if reverse else range(4)):
                    want[k], carry = carry * 2, carry * xs[:, k].sin() + xs[:, k]
                assert torch.allclose(last, carry) and torch.allclose(ys, torch.stack([want[k] for k in range(4)]))
                found = torch.autograd.grad((last * last).sum() + ys.exp().sum(), (xs, c))
                wanted = torch.autograd.grad((carry * carry).sum() + sum(w.exp().sum() for w in want.values()), (xs, c))
                assert all(torch.allclose(a, b) for a, b in zip(found, wanted))
            assert torch.equal(ops.scan(lambda c, _: (c + 1, c), torch.tensor(0), (), length=3)[1], torch.arange(3))
            assert torch.allclose(each(lambda x, a: x.sin() * a, xs, torch.tensor(2.0)), xs.sin() * 2)
            for choose in (torch.cond, ops.cond, cond):
                assert torch.equal(choose(c.sum() > 9, lambda c: c + 1, lambda c: c * 2, (c,)), c * 2)
                assert torch.equal(choose(c.sum() < 9, lambda c, x: c + x, lambda c, x: c * 2, (c, xs[:, 0])), c + xs[:, 0])
        xs = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
        start = torch.linspace(0, 1, 3, dtype=torch.float64)
        check(xs, start.requires_grad_())
        twice = torch.compile(lambda c: torch.cond(c.sum() > 9, lambda c: c + 1, lambda c: c * 2, (c,)))
        assert torch.equal(twice(start), start * 2)
        try:
            torch.while_loop(lambda x: x < 1, lambda x: (x + 1,), torch.zeros(()))
        except TypeError as error:
            assert "while_loop: carried_inputs must be a tuple" in str(error)
        else:
            raise AssertionError("not refused")
    """)


def test_methods_of_modules():
    """What packages call and override of torch's Module."""
    program("""
        import torch
        from torch import nn
        class Renamed(nn.Linear):
            def _load_from_state_dict(self, state_dict, prefix, *rest):
                if prefix + "old" in state_dict:
                    state_dict[prefix + "weight"] = state_dict.pop(prefix + "old")
                super()._load_from_state_dict(state_dict, prefix, *rest)
            def _save_to_state_dict(self, destination, prefix, keep_vars):
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "more"] = torch.zeros(1)
        model = nn.Sequential(Renamed(2, 2, bias=False))
        assert list(model.state_dict()) == ["0.weight", "0.more"]
        model.load_state_dict({"0.old": torch.eye(2)})
        assert torch.equal(model[0].weight, torch.eye(2))
        assert model.cpu() is model and model._apply(lambda t: t * 2) is model and model[0].weight[0, 0] == 2
        assert len(nn.ModuleList([None, nn.Linear(1, 1)])) == 2
        hook = model._register_load_state_dict_pre_hook(lambda state_dict, prefix, *rest: state_dict.update(seen=1))
        assert model.load_state_dict({"0.weight": torch.eye(2)}, strict=False).unexpected_keys == ["seen"]
        wrapped = nn.DataParallel(model)
        assert wrapped.module is model and wrapped(torch.ones(1, 2)).shape == (1, 2)
    """)


def test_lists_of_tensors():
    program("""
        import torch
        a = [torch.ones(2), torch.ones(3)]
        torch._foreach_mul_(a, 2.0)
        torch._foreach_add_(a, a, alpha=2)
        assert [x.tolist() for x in a] == [[6.0] * 2, [6.0] * 3]
        assert [x[0].item() for x in torch._foreach_sqrt(a)] == [torch.tensor(6.0).sqrt().item()] * 2
    """)


def test_every_name_is_one_of_torchs():
    """No module of names/ has a public name that torch's module lacks, and what is listed as absent is torch's, and not here."""
    torch = pytest.importorskip("torch")
    folder = ROOT / "tracegrad" / "torch_api" / "names"
    wrong = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(("torch", *(p for p in parts if p != "__init__")))
        if parts[-1] in ("_markers", "_code", "_naming") or name in ("torch.onnx.opset", "torch.utils.tensorboard"):
            continue                                        # (torch's own of the last needs another package)
        ours = importlib.import_module(".".join(("tracegrad.torch_api.names", *(p for p in parts if p != "__init__"))))
        theirs = torch.ops if name == "torch.ops" else importlib.import_module(name)
        made = [n for n, v in vars(ours).items() if not n.startswith("_") and getattr(v, "__module__", "").startswith(ours.__name__)]
        wrong += [f"{name}.{n}" for n in made if not hasattr(theirs, n)]
    assert not wrong
    assert not [f"{m}.{n}" for m, names in ABSENT.items() for n in names.split() if not hasattr(importlib.import_module(m), n)]
    assert not [m for m in ABSENT if m.startswith("torch.ao") and sources(m)]


def test_hub_jit_and_onnx_say_what_to_do(tmp_path):
    """hub.load of a folder runs; scripts are the functions themselves, with torch's kind of warning; files of programs are refused."""
    (tmp_path / "beside.py").write_text("width = 3\n")
    (tmp_path / "hubconf.py").write_text(textwrap.dedent("""
        from torch import nn
        from beside import width
        def small(out=2):
            "A small layer."
            return nn.Linear(width, out)
    """))
    folder = str(tmp_path)
    print(program(f"""
        import sys, warnings
        import torch
        layer = torch.hub.load({folder!r}, "small", source="local", out=4, trust_repo=True)
        assert tuple(layer.weight.shape) == (4, 3)
        assert "small" in torch.hub.list({folder!r}, source="local")
        assert torch.hub.help({folder!r}, "small", source="local") == "A small layer."
        assert {folder!r} not in sys.path
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            f = torch.jit.script(lambda x: 2 * x)
            assert torch.jit.trace(layer, torch.ones(3)) is layer and torch.jit.freeze(layer) is layer and f(3) == 6
        assert [w.category for w in found] == [FutureWarning] * 2 and "torch.compile" in str(found[0].message)
        assert torch.jit.annotate(int, 3) == 3 and torch.jit.ignore(f) is f
        for call, words in ((lambda: torch.hub.load("owner/name", "small"), "clone local"),
                            (lambda: torch.hub.load("a", "b", source="ftp"), "ftp"),
                            (lambda: torch.hub.load({folder!r}, "large", source="local"), "large hubconf"),
                            (lambda: torch.onnx.export(layer, torch.ones(3), "x.onnx"), "tracegrad.save")):
            try:
                call()
            except (RuntimeError, ValueError) as error:
                assert all(word in str(error) for word in words.split()), error
            else:
                raise AssertionError(words)
    """))


def test_torchaudios_loops_over_samples():
    """torchaudio cannot be imported without its library: what that has is here; other libraries of compiled operations are refused."""
    program("""
        import torch
        try:
            torch.ops.load_library("some/place/_C.so")
        except OSError as error:
            assert "compiled for torch" in str(error)
        else:
            raise AssertionError
        torch.ops.load_library("some/place/_torchaudio.so")
        assert torch.ops._torchaudio.cuda_version() is None and not torch.ops._torchaudio.is_align_available()
        x, a = torch.randn(2, 3, 7), torch.randn(3, 2) / 2              # a[1], a[0] as the filter has them: flipped
        padded = torch.zeros(2, 3, 8)
        torch.ops.torchaudio._lfilter_core_loop(x, torch.cat([a[:, :1], torch.ones(3, 1)], 1), padded)
        want = [torch.zeros(2, 3)]
        for t in range(7):
            want.append(x[:, :, t] - a[:, 0] * want[-1])
        assert torch.allclose(padded, torch.stack(want, -1), atol=1e-6)
        wave, distorted, out = torch.randn(2, 5), torch.randn(2, 5), torch.zeros(2, 5)
        torch.ops.torchaudio._overdrive_core_loop(wave, distorted, torch.zeros(2), torch.zeros(2), out)
        before = last = torch.zeros(2)
        for t in range(5):
            before, last = distorted[:, t], distorted[:, t] - before + 0.995 * last
            assert torch.allclose(out[:, t], wave[:, t] * 0.5 + last * 0.75, atol=1e-6)
    """)
