"""torch's modules, name for name, made of tracegrad's: what `import torch` gives after `import tracegrad.as_torch`. Start at `hook.py`.

`modules.py` says of what each module of torch's is made. `names/` has what tracegrad has no name for, in torch's own folders.
"""
