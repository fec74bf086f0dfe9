"""The names of torch's namespaces (2.15) that are not here, each with its reason. Start at `absent`.

torch_names.txt has all of them, without modules and imports of typing; a slow test compares it with torch. The operator database of
coverage.py is about operations; this is about everything that a program may name.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import tracegrad as tg

_TEXT = (Path(__file__).parent / "torch_names.txt").read_text()
NAMESPACES = {space: names.split() for space, names in re.findall(r"^\[([\w.]+)\]\n([^\[]*)", _TEXT, re.MULTILINE)}

_WHOLE = {"torch", "torch.nn", "torch.nn.functional", "torch.nn.utils", "torch.nn.init", "torch.special", "torch.linalg", "torch.fft",
          "torch.func", "torch.optim", "torch.autograd", "torch.random", "torch.utils.data"}  # fmt: skip  (the others import many things)

# (namespaces, names, why): the first that fits a name holds
REASONS = [(re.compile(spaces), re.compile(names), why) for spaces, names, why in [
    (".*", r".*(sparse|csr|csc|bsr|bsc|coo|coalesce|dense|mkldnn).*|.*indices(_copy)?|values(_copy)?|[hs]smm|hspmm|dsmm|smm|spmm|s?addmm$"
           r"|sspaddmm|SparseAdam|jagged|to_padded_tensor",
     "there are dense tensors only; MKL-DNN's layouts are not OpenCL's"),
    (".*", r".*([qQ]uant|quint|qint|QInt|QUInt).*|q_.*|qscheme|per_(channel|tensor).*|int_repr|fbgemm.*|choose_qparams.*|fake_.*"
           r"|fused_moving_avg.*|scaled_.*|grouped_mm|ScalingType|SwizzleType",
     "no quantized numbers"),
    (".*", r"chalf|b?complex32|float[48]_.*|bits?(\d.*)?|u?int[1-7]|legacy_contiguous_format",
     "OpenCL or NumPy has no such dtype"),
    (".*", r"cuda|ipu|xpu|mtia|cudnn_.*|miopen_.*|is_vulkan_available|Stream|Event|StreamObjType|DeviceObjType|AcceleratorError"
           r"|get_device_module|record_stream|pin_memory|enforce_grad_layout_policy|DeviceType|profiler_allow.*",
     "CUDA's and other vendors' interfaces; `x.to(device)`, `tg.devices()` and `f.profile()` are OpenCL's"),
    (".*", r"DataParallel|share_memory_|fork|wait|Future|RRefType|prepare_multiprocessing_environment|DistributedSampler"
           r"|batch_norm_(gather|stats|elemt|backward|update).*",
     "one process and one device compute"),
    (".*", r".*autocast_.*|.*_autocast.*", "no automatic mixed precision; `model.half()` and `x.to(dtype)` choose it"),
    (".*", r"sym_.*|Sym(Int|Float|Bool)\w*", "shapes are known when a graph is made"),
    ("torch", r"[A-Z]\w*Type|Script\w*|CompilationUnit|Complete\w+|Concrete\w+|LiteScriptModule|StaticModule|JITException|parse_\w+"
              r"|(import|merge|unify)_\w+|AliasDb|Argument(Spec)?|Block|CallStack|Capsule|Code|Graph\w*|Gradient|Node|Use|Value|Type"
              r"|FunctionSchema|ErrorReport|ExecutionPlan|FileCheck|IODescriptor|OperatorInfo|TracingState|AggregationType|AVG|SUM"
              r"|(Dispatch|Disable|Exclude)\w+|DeepCopyMemoTable|(De)?[sS]erialization\w+|PyTorchFile\w+|\w*Logger\w*|Benchmark\w+"
              r"|ThroughputBenchmark|Tag|FatalError|BufferDict|ModuleDict|ParameterDict|classproperty|get_file_path|compile(d_with_cxx11_abi)?"
              r"|init_num_threads|_\w+",
     "inner parts of TorchScript, of the dispatcher and of torch's build; `tg.trace`, `f.graph` and `f.source()` are the counterparts"),
    (".*", r"(\w*Storage\w*|\w+Tensor|storage\w*|untyped_storage|data_ptr|const_data_ptr|set_|is_set_to|new|resize|is_storage|as_strided_"
           r"|set_default_tensor_type|from_file|to_dlpack)$",
     "tensors have no storage that could be named: memory is given when a value is computed. `tg.tensor(..., dtype=...)`, `x.resize_`, "
     "`np.memmap` with `tg.asarray`, `tg.from_dlpack`"),
    (".*", r"index|slice_(copy|inverse)|as_subclass|module_load|grad_dtype|name|output_nr|volatile|reinforce|resize_as",
     "inner or removed attributes of torch's tensors"),
    (".*", r"eig|lstsq|matrix_rank|solve|symeig|variable|Variable|Container|NLLLoss2d|range|clip_grad_norm"
           r"|(constant|dirac|eye|kaiming_normal|kaiming_uniform|normal|orthogonal|sparse|uniform|xavier_normal|xavier_uniform)",
     "removed or deprecated in torch; `tg.linalg`, `arange`, and the names with an underscore at the end"),
    ("torch", r"(adaptive_max_pool1d|batch_norm|binary_cross_entropy_with_logits|convolution|cosine_embedding_loss|ctc_loss|embedding"
              r"|embedding_bag|embedding_renorm_|hinge_embedding_loss|instance_norm|kl_div|margin_ranking_loss|poisson_nll_loss"
              r"|triplet_margin_loss|(alpha_|feature_alpha_|feature_)?dropout_?|(rnn_|g|l)\w*(ru|stm|relu|tanh)(_cell)?|frobenius_norm"
              r"|nuclear_norm|native_norm|norm_except_dim)$",
     "ATen's forms, with numbers for reductions and another order of arguments; `tg.nn.functional`, `tg.nn` and `tg.linalg` have them all"),
    ("torch", r"[sg]et_(num|num_interop)_(threads|interop_threads)|[sg]et_num_.*|set_flush_denormal",
     "the driver has the threads: PoCL's is `POCL_MAX_PTHREAD_COUNT`, before the start"),
    ("torch", "set_anomaly_enabled", "the switch behind `tg.autograd.set_detect_anomaly`"),
    ("torch", r"[sg]et_deterministic_debug_mode|(set|is)_warn_always.*|thread_safe_generator|lobpcg",
     "rarely used; `tg.use_deterministic_algorithms`, Python's `warnings`, `scipy.sparse.linalg.lobpcg`"),
    ("torch.random", "thread_safe_generator", "a `tg.Generator` for each worker"),
    (r"torch\.nn$", r"RNNBase|RNNCellBase|UninitializedBuffer|factory_kwargs|LinearCrossEntropyOptions", "base classes and inner helpers"),
    (r"torch\.nn$", "CrossMapLRN2d", "an old form; `nn.LocalResponseNorm` is the layer"),
    (".*", r"BroadcastingList\d|assert_int_or_pair|boolean_dispatch|.*torch_function.*|is_tensor_like|PackedSequence_|bind|CustomClassBase"
           r"|transfer_parametrizations_and_params|swap_in_optimizer_params_and_state|Tensor|ref|inf|debug_unwrap",
     "inner helpers of torch"),
    (r"torch\.nn\.utils$", r"convert_conv\dd_weight_memory_format|skip_init",
     "memory has one format; initial values are computed when used"),
    (r"torch\.autograd$", r"Profiler\w+|NestedIOFunction|SavedTensor|kineto_available|(is|set)_multithreading_enabled"
                            r"|is_view_replay_enabled",
     "inner parts of torch's engine; `f.profile()` is the profiler"),
    (r"torch\.autograd\.graph", r".*",
     "nothing is saved by the forward: the backward is a graph over the forward's nodes (`x.grad_fn`, hooks)"),
    (r"torch\.func", r"functionalize|rearrange", "operations in place are functional already; `einops` takes arrays of the array API"),
    (r"torch\.utils\.data", r".*DataPipe|\w+_datapipes?(_determinism)?|DataChunk|non_deterministic|\w+_validation(_disabled)?",
     "data pipes, which torch no longer develops: an `IterableDataset` gives samples in any way"),
]]  # fmt: skip


def of_torch(torch: Any, space: str) -> list[str]:
    """The public names of a namespace: of torch's own classes, functions and constants."""
    owner = torch.Tensor if space == "torch.Tensor" else importlib.import_module(space)
    kinds = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme, float, type(None))
    found = []
    for name in sorted(n for n in dir(owner) if not n.startswith("_")):
        value = getattr(owner, name, None)
        module = getattr(value, "__module__", None)
        own = module.startswith("torch") if module is not None else callable(value) or isinstance(value, kinds)
        if space not in _WHOLE and module is not None:
            own = module.startswith(space)
        if space == "torch.Tensor" or isinstance(value, torch.dtype):
            own = True
        if isinstance(value, (ModuleType, str, bool, dict, tuple, list, int)) and space != "torch.Tensor":
            own = False
        if own and not (name in ("Tensor", "Enum", "auto") and space != "torch"):
            found.append(name)
    return found


def here(space: str, name: str) -> bool:
    """Whether tracegrad has the name."""
    owner: Any = tg
    for part in space.split(".")[1:]:
        owner = getattr(owner, part, None)
    return hasattr(owner, name)


def absent() -> dict[str, dict[str, list[str]]]:
    """reason -> namespace -> the names that are not here; "not written yet" for those without one."""
    found: dict[str, dict[str, list[str]]] = {}
    for space, names in NAMESPACES.items():
        for name in names:
            if not here(space, name):
                fits = (why for spaces, pattern, why in REASONS if spaces.fullmatch(space) and pattern.fullmatch(name))
                found.setdefault(next(fits, "not written yet"), {}).setdefault(space, []).append(name)
    return found


def text() -> list[str]:
    """The section of docs/coverage.md."""
    total = sum(map(len, NAMESPACES.values()))
    missing = absent()
    count = sum(len(names) for spaces in missing.values() for names in spaces.values())
    lines = ["## Names of torch's namespaces", "",
             f"Of {total} names of {', '.join(f'`{s}`' for s in NAMESPACES)}, {total - count} are here. The others:", "",
             "| why | names |", "|---|---|"]  # fmt: skip
    for why, spaces in missing.items():
        shown = "; ".join(f"{space}: {', '.join(f'`{n}`' for n in names)}" for space, names in spaces.items())
        lines.append(f"| {why} | {shown} |")
    return lines
