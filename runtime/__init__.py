"""The runtime: devices, buffers, programs, launches; knows nothing of graphs. Start at `launch.py`. Installed as `tracegrad.runtime`."""

if __name__ != "tracegrad.runtime":
    raise ImportError(f"import tracegrad.runtime, not {__name__}: a second copy would load")
