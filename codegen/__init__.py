"""The code generator: graph -> OpenCL C and a launch plan. Start at `passes.py`. Installed as `tracegrad.codegen`."""

if __name__ != "tracegrad.codegen":
    raise ImportError(f"import tracegrad.codegen, not {__name__}: a second copy would load")
