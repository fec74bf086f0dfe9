"""torch._inductor.config: settings of a compiler that does not run here. They can be set, and mean nothing."""

from types import SimpleNamespace

coordinate_descent_tuning = coordinate_descent_check_all_directions = max_autotune = max_autotune_gemm = False
fx_graph_cache = freezing = epilogue_fusion = force_fuse_int_mm_with_mul = conv_1x1_as_mm = False
triton = SimpleNamespace(cudagraphs=False, unique_kernel_names=False)
cpp = SimpleNamespace(threads=-1)
