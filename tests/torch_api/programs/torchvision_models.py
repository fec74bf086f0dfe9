"""Models of torchvision on random images: loss and gradients, for the names given (eight if none). Plain torch; see beside_torch.py."""

import sys

import torch
import torchvision
from report import report
from torch.nn import functional as F

MODELS = ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x0_5", "squeezenet1_1", "googlenet", "vit"]


def run(name):
    torch.manual_seed(0)
    options = {"image_size": 64, "hidden_dim": 48, "mlp_dim": 96, "num_heads": 4, "num_layers": 2, "patch_size": 16}
    if name == "vit":
        model = torchvision.models.VisionTransformer(num_classes=7, **options)
        torch.nn.init.normal_(model.heads.head.weight, std=0.1)             # zeros at first: no gradient before it
    elif name == "googlenet":
        model = torchvision.models.googlenet(num_classes=7, init_weights=True)
    else:
        model = torchvision.models.get_model(name, num_classes=7)
    model.train()
    images = torch.randn(4, 3, 64, 64)
    found = model(images)
    logits = [found] if isinstance(found, torch.Tensor) else [x for x in found if x is not None]
    loss = sum(F.cross_entropy(x, torch.tensor([1, 3, 0, 6])) for x in logits)
    loss.backward()
    return {"loss": loss.item(), **{path: p.grad.norm().item() for path, p in model.named_parameters() if p.grad is not None}}


report(sys.argv[1:] or MODELS, run)
