"""Small untraced training programs, each written once for tracegrad and torch: `make(f)` of a module gives `step()`, one turn of its loop.

`f.T` is the framework's namespace, `f.F` its nn.functional. `python -m benchmarks.programs NAME` times one; see timing.py.
"""

from __future__ import annotations

NAMES = ("mlp", "transformer", "dcgan", "reinforce", "vit", "actor_critic", "lstm", "lotka_volterra", "annealed_vae")
