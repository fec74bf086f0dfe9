"""Packages for torch, each by a small use of it: quantizers, optimizers, solvers, losses, diffusion. Plain torch; see beside_torch.py."""

import random
import sys

import torch
import torchsde
from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D
from ema_pytorch import EMA
from lion_pytorch import Lion
from local_attention import LocalTransformer
from pytorch_metric_learning import losses, miners
from report import report
from rotary_embedding_torch import RotaryEmbedding
from torch import nn
from torch.nn import functional as F
from vector_quantize_pytorch import FSQ, LFQ, VectorQuantize


def gradients(loss, owner):
    """The loss and the norms of its gradients: of a module's parameters, or of one tensor."""
    loss.backward()
    named = owner.named_parameters() if isinstance(owner, nn.Module) else [("input", owner)]
    return {"loss": loss.item(), **{path: p.grad.norm().item() for path, p in named if p.grad is not None}}


def vector_quantize():
    x = torch.randn(2, 64, 16, requires_grad=True)
    quantized, places, loss = VectorQuantize(dim=16, codebook_size=32, kmeans_init=True, kmeans_iters=3)(x)
    steps, levels = FSQ([8, 5, 5, 5])(torch.randn(1, 16, 4))
    signs, bits, more = LFQ(codebook_size=64, dim=16, entropy_loss_weight=0.1)(torch.randn(1, 16, 8, 8))
    return {**gradients((quantized.square().mean() + loss).sum() + more, x), "places": places.tolist(), "levels": levels.tolist(),
            "bits": bits.tolist(), "steps": steps.square().sum().item(), "signs": signs.square().sum().item()}


def optimizers():
    model = nn.Linear(4, 3)
    average, optimizer = EMA(model, beta=0.9, update_after_step=1, update_every=1), Lion(model.parameters(), lr=1e-2, weight_decay=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        found = gradients(model(torch.randn(3, 4)).square().mean(), model)
        optimizer.step()
        average.update()
    return {**found, "average": average.ema_model.weight.norm().item(), "weight": model.weight.norm().item()}


def rotary():
    rotate, q = RotaryEmbedding(dim=8), torch.randn(1, 2, 10, 16, requires_grad=True)
    a, b = rotate.rotate_queries_with_cached_keys(q[:, :, :4], torch.randn(1, 2, 12, 16))
    return {**gradients((rotate.rotate_queries_or_keys(q) * torch.randn(16)).square().sum(), q), "a": a.norm().item(), "b": b.norm().item()}


class Noisy(nn.Module):
    """A stochastic differential equation."""

    noise_type, sde_type = "diagonal", "stratonovich"

    def __init__(self):
        super().__init__()
        self.drift, self.noise = nn.Linear(3, 3), nn.Linear(3, 3)

    def f(self, t, y):
        return self.drift(y)

    def g(self, t, y):
        return self.noise(y).sigmoid()


def solved(solver):
    equation = Noisy()
    noise = torchsde.BrownianInterval(t0=0.0, t1=1.0, size=(4, 3), entropy=1)
    y = getattr(torchsde, solver)(equation, torch.full((4, 3), 0.1), torch.linspace(0, 1, 3), method="midpoint", dt=0.2, bm=noise)
    return gradients(y.square().mean(), equation)


def metric_learning():
    x, labels = torch.randn(16, 8, requires_grad=True), torch.arange(16) % 4
    found = {}
    for kind in ("TripletMarginLoss", "ContrastiveLoss", "NTXentLoss", "MultiSimilarityLoss", "CircleLoss", "SupConLoss", "NPairsLoss"):
        x.grad = None
        loss = getattr(losses, kind)()(x, labels)
        loss.backward()
        found[kind], found[f"{kind} gradient"] = loss.item(), x.grad.norm().item()
    return {**found, "mined": [t.tolist() for t in miners.MultiSimilarityMiner()(x, labels)]}


def local_attention():
    model = LocalTransformer(num_tokens=64, dim=32, depth=2, max_seq_len=64, causal=True, local_attn_window_size=16, heads=2, dim_head=16)
    return gradients(model(torch.randint(0, 64, (2, 48)), return_loss=True), model)


def diffusion():
    model = Unet1D(dim=16, dim_mults=(1, 2), channels=4)
    process = GaussianDiffusion1D(model, seq_length=16, timesteps=10, objective="pred_v")
    found = gradients(process(torch.rand(2, 4, 16)), model)
    return {**found, "sample": F.relu(process.sample(batch_size=2)).norm().item()}


MODELS = {"vector-quantize-pytorch": vector_quantize, "ema- and lion-pytorch": optimizers, "rotary-embedding-torch": rotary,
          "torchsde": lambda: solved("sdeint"), "torchsde-adjoint": lambda: solved("sdeint_adjoint"),
          "pytorch-metric-learning": metric_learning, "local-attention": local_attention, "denoising-diffusion-pytorch": diffusion}


def run(name):
    torch.manual_seed(0)
    random.seed(0)                                          # hyper-connections takes its streams by it
    return MODELS[name]()


report(sys.argv[1:] or MODELS, run)
