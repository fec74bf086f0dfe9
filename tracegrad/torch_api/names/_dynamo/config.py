"""torch._dynamo.config: settings of a compiler that does not run here. They can be set, and mean nothing."""

cache_size_limit = recompile_limit = 8
suppress_errors = capture_scalar_outputs = capture_dynamic_output_shape_ops = verbose = optimize_ddp = False
