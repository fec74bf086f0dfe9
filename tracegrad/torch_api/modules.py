"""Of what each of torch's modules is made: start at `sources`. And classes that are not here, but that annotations name: `placeholder`."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

from tracegrad import backends
from tracegrad.errors import UnsupportedError
from tracegrad.support.cache import memoize

# Modules of torch's that are elsewhere here; others have the same path.
_NN_MODULES = ("activation adaptive batchnorm channelshuffle container conv distance dropout flatten fold instancenorm lazy linear "
               "loss module normalization padding pixelshuffle pooling rnn sparse transformer upsampling")
_DISTRIBUTIONS = ("bernoulli beta binomial categorical cauchy chi2 continuous_bernoulli dirichlet exp_family exponential "
                  "fishersnedecor gamma generalized_pareto geometric gumbel half_cauchy half_normal independent inverse_gamma "
                  "kumaraswamy laplace lkj_cholesky log_normal logistic_normal lowrank_multivariate_normal mixture_same_family "
                  "multinomial multivariate_normal negative_binomial normal one_hot_categorical pareto poisson relaxed_bernoulli "
                  "relaxed_categorical studentT transformed_distribution uniform von_mises weibull wishart")
_OPTIMIZERS = "adadelta adagrad adam adamax adamw asgd lbfgs nadam radam rmsprop rprop sgd"
_ELSEWHERE = {
    **{f"torch.nn.modules{name}": "nn torch_api.names.nn.modules" for name in ("", *(f".{n}" for n in _NN_MODULES.split()))},
    **{f"torch.onnx.symbolic_opset{n}": "torch_api.names.onnx.opset" for n in range(7, 21)},
    **dict.fromkeys(("torch.functional", "torch._tensor", "torch.autograd.grad_mode"), "."),
    **dict.fromkeys(("torch.utils.data.dataset", "torch.utils.data.dataloader", "torch.utils.data.sampler"), "utils.data"),
    **{f"torch.optim.{name}": "torch_api.names.optim._functional optim" for name in _OPTIMIZERS.split()},
    **dict.fromkeys(("torch.amp.autocast_mode", "torch.amp.grad_scaler"), "amp"),
    **dict.fromkeys(("torch.cuda.amp.autocast_mode", "torch.cuda.amp.grad_scaler"), "cuda.amp"),
    **dict.fromkeys(("torch.cuda.memory", "torch.cuda.streams", "torch.cuda.random", "torch.cuda.graphs"), "torch_api.names.cuda cuda"),
    "torch.utils.hooks": "autograd.hooks",
    **dict.fromkeys(("torch.autograd.variable", "torch.autograd.anomaly_mode"), "autograd"),
    "torch.distributed._composable.fsdp": "distributed.fsdp",
    **dict.fromkeys(("torch.distributed.nn", "torch.distributed.nn.functional"), "distributed.functional"),
    **dict.fromkeys(("torch.utils.data._utils", "torch.utils.data._utils.collate"),
                    "torch_api.names.utils.data.dataloader utils.data.collate"),
    "torch.utils.tensorboard.writer": "torch_api.names.utils.tensorboard",
    "torch.distributions.kl": "distributions.divergence",
    "torch.distributions.transforms": "distributions.transforms distributions.joined_transforms",
    **dict.fromkeys((f"torch.distributions.{name}" for name in _DISTRIBUTIONS.split()), "distributions"),
    "torch._C._nn": "nn.functional",
    **{f"torch._higher_order_ops.{name}": "torch_api.names._higher_order_ops.control" for name in ("cond", "map", "scan", "while_loop")},
    **dict.fromkeys(("torch.autograd.profiler", "torch.profiler.profiler"), "torch_api.names.profiler"),
    "torch.nn.parallel.distributed": "torch_api.names.nn.parallel nn.parallel",
    "torch.storage": "torch_api.storages",
    "torch._tensor_str": "torch_api.printing",
    "functorch": "torch_api.functorch func",
    "torch.random": "torch_api.random_numbers random",
}


@memoize(1024)
def sources(name: str) -> tuple[str, ...]:
    """The modules that have the names of torch's module `name`, those of `names/` first; empty if it is not here."""
    path = name.partition(".")[2] if name.partition(".")[0] == "torch" else name
    candidates = [f"torch_api.names.{path}", *_ELSEWHERE.get(name, path or ".").split()]
    return tuple(module for module in (f"tracegrad.{c}".rstrip(".") for c in candidates) if _exists(module))


def setting(name: str) -> Any:
    """The object that is torch's module `name`, as torch.backends.cudnn is; None for other names."""
    parent, _, last = name.rpartition(".")
    found = getattr(backends, last, None) if parent == "torch.backends" else None
    return found if isinstance(found, backends.Backend) else None


def is_ours(module: ModuleType) -> bool:
    """Whether it is one of this library's."""
    return module.__name__.partition(".")[0] == "tracegrad"


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# Classes of torch's that are not here, but that programs name in annotations and in `isinstance`: docs/torch.md has the reasons.
ABSENT = {
    "torch": "PyTorchFileReader PyTorchFileWriter Stream Event ScriptObject ScriptModule TensorType DispatchKey DispatchKeySet",
    "torch.cuda": "graph CUDAPluggableAllocator MemPool ExternalStream GreenContext",
    "torch.distributed._tensor": "DTensor",
    "torch.distributed._tensor.experimental": "implicit_replication",
    "torch.distributed.device_mesh": "DeviceMesh init_device_mesh",
    "torch.distributed.optim": "ZeroRedundancyOptimizer PostLocalSGDOptimizer",
    "torch.distributed.rpc": "RRef init_rpc remote rpc_async rpc_sync shutdown",
    "torch.distributed.tensor": "DTensor",
    "torch._tensor_str": "PRINT_OPTS",
    "torch.autograd.profiler": "emit_nvtx emit_itt",
    "torch.utils._python_dispatch": "TorchDispatchMode",
    "torch.utils.cpp_extension": "BuildExtension CppExtension CUDAExtension",
    "torch.nested": "as_nested_tensor masked_select narrow nested_tensor nested_tensor_from_jagged to_padded_tensor",
    "torch.multiprocessing": "Process Pool spawn start_processes",
    **dict.fromkeys(("torch.nn", "torch.nn.modules"), "CrossMapLRN2d"),
    "torch.nn.parameter": "UninitializedBuffer UninitializedTensorMixin",
    "torch.nn.parallel.scatter_gather": "gather scatter scatter_kwargs",
    "torch.utils.data.datapipes": "",
    "torch.utils.data.datapipes.datapipe": "IterDataPipe MapDataPipe",
    **dict.fromkeys(("torch.utils.data.datapipes.iter", "torch.utils.data.datapipes.iter.combinatorics"),
                    "SamplerIterDataPipe ShufflerIterDataPipe"),
    "torch.utils.data.dataloader": "_BaseDataLoaderIter _MultiProcessingDataLoaderIter",
    "torch.ao": "",
    "torch.ao.quantization": "QuantStub DeQuantStub QuantWrapper FakeQuantize FakeQuantizeBase ObserverBase QConfig",
    "torch.ao.nn": "",
}


@memoize(256)
def placeholder(module: str, name: str) -> type | None:
    """A class that has no instances, and says so when it is called; None for a name that is not in the list."""
    if name not in ABSENT.get(module, "").split():
        return None

    def refuse(cls: type, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"{module}.{name}: is not in tracegrad (docs/torch.md says why, and what to use)")

    return type(name, (), {"__module__": module, "__new__": refuse, "__doc__": f"{module}.{name}, which is not here.",
                           "__class_getitem__": classmethod(lambda cls, of: cls)})
