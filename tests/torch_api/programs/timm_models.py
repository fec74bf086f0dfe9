"""Models of timm on random images: loss and gradients, for the names given (eight if none). Plain torch; see beside_torch.py."""

import sys

import numpy as np
import timm
import torch
from report import report

MODELS = ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050", "efficientnet_b0", "regnety_002", "mixer_s32_224",
          "repvgg_a0"]


def run(name):
    model = timm.create_model(name, num_classes=7)
    size = 224 if "224" in name else 64
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for path, p in sorted(model.named_parameters()):
            scale = np.prod(p.shape[1:]) ** -0.5 if p.dim() > 1 else 0.1
            p.copy_(torch.tensor((rng.standard_normal(tuple(p.shape)) * scale + (p.dim() == 1 and path.endswith("weight"))).astype("f4")))
    for module in model.train().modules():
        if "rop" in type(module).__name__:                  # dropout draws other numbers
            module.eval()
    images = torch.tensor(np.random.default_rng(1).standard_normal((4, 3, size, size)).astype("f4"))
    loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 3, 0, 6]))
    loss.backward()
    return {"loss": loss.item(), **{path: p.grad.norm().item() for path, p in model.named_parameters() if p.grad is not None}}


report(sys.argv[1:] or MODELS, run)
