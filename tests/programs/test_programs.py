"""Whole programs give what torch gives, untraced and traced. They stand in `programs.py`.

EXPECTED is of torch 2.15: of all results of a program, one after the other, the sum weighted by cos(0), cos(1), ..., and the norm.
"""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.programs.programs import PROGRAMS

EXPECTED = {
    "mlp_closure_sgd": (1.38804, 6.23779),
    "weight_sharing": (3.22301, 8.37484),
    "grad_accumulation_clipping": (0.305678, 3.75533),
    "maml": (43.0512, 41.3188),
    "implicit_diff": (4.12365, 7.0509),
    "newton": (-60.4402, 160.092),
    "adjoint_heat_roll": (48.7551, 40.1516),
    "advection_pad": (146.658, 740.17),
    "wave_leapfrog_inplace": (4.31356, 51.948),
    "masked_updates": (21.153, 43.4405),
    "onehot_einsum": (-41.4413, 62.5996),
    "index_put_accumulate": (16.1216, 41.2511),
    "cumulative": (2.25789, 178.33),
    "sort_gather_topk": (-82.3152, 734.391),
    "rnn_loop": (13.4038, 13.7044),
    "python_while": (50.2402, 49.5986),
    "convnet_bn_dropoutless": (-2.00928, 7.23963),
    "attention_causal_train": (4.22752, 14.7746),
    "dqn_target": (0.176878, 3.96727),
    "hvp_and_double_backward": (-2180.9, 1367.18),
    "soft_dtw": (10.2471, 11.8527),
    "pinn_laplacian": (240.444, 187.541),
    "triangular_views_inplace": (-124.038, 213.75),
    "multi_task_retain": (2.7462, 5.79674),
    "traced_pieces": (2.23449, 5.02888),
    "double_backward_through_pieces": (0.655782, 20.9714),
    "wgan_nested_module_state": (0.182024, 2.26019),
    "lr_schedule_and_groups": (-0.218256, 1.36007),
    "frozen_layers_toggle": (1.37524, 2.1799),
    "inplace_state_views": (38.1784, 189.361),
    "kv_cache_decode": (35.8934, 32.2349),
}


def agrees(name, compiled):
    found = np.concatenate([np.asarray(t.detach().tolist(), dtype=np.float64).reshape(-1) for t in PROGRAMS[name](tg, compiled)])
    weighted, norm = EXPECTED[name]
    assert np.linalg.norm(found) == pytest.approx(norm, rel=1e-4)
    assert (found * np.cos(np.arange(found.size))).sum() == pytest.approx(weighted, rel=1e-4, abs=1e-4 * norm)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_what_torch_gives(name, run):
    agrees(name, run)


@pytest.mark.parametrize("name", ["masked_updates", "inplace_state_views", "kv_cache_decode", "index_put_accumulate"])
def test_some_on_the_default_device(name):
    agrees(name, tg.trace)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_on_the_default_device(name, run):
    agrees(name, run)
