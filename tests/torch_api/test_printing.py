"""Tensors print under the hook as they do with torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch


def test_texts_are_torchs():
    beside_torch("""
torch.manual_seed(0)
tensors = dict(
    number=torch.tensor(1.5), whole=torch.tensor([1.0, 2.0, 300.0]), mixed=torch.tensor([[1.5, 2.0], [-3.25, 1000.0]]),
    zero=torch.zeros(2, 3), product=torch.ones(2, requires_grad=True) * 2, total=torch.ones(2, requires_grad=True).sum(),
    powers=torch.tensor([1e-6, 1.0, 1e5]), large=torch.tensor([1e9, 1.0]), special=torch.tensor([float("nan"), float("inf"), -1.5]),
    infinite=torch.tensor([float("inf"), 2.0]), integers=torch.tensor([[1, -20], [300, 4]]), bools=torch.tensor([True, False]),
    half=torch.tensor([1.5, 2.0]).half(), other=torch.tensor([1.5], dtype=torch.float64), int32=torch.tensor([1], dtype=torch.int32),
    complex=torch.tensor([1 + 2j, -3.5j]), empty=torch.zeros(0), empty2=torch.zeros(0, 3), none=torch.zeros(0, dtype=torch.int64),
    random=torch.randn(3, 4), wide=torch.randn(30), cube=torch.randn(2, 2, 3), long=torch.arange(2000), big=torch.randn(50, 60),
    deep=torch.zeros(2, 1, 1, 2), leaf=torch.ones(2, requires_grad=True), parameter=torch.nn.Parameter(torch.ones(2, 2)),
    meta=torch.zeros(2, device="meta"), halves=torch.randn(3, 3).bfloat16(),
    many=torch.randn(3, 40, requires_grad=True, dtype=torch.float64))
for name, tensor in tensors.items():
    say(name, lambda: repr(tensor))
    say(name + " in text", lambda: f"{tensor} {tensor.shape}")
say("numbers", lambda: f"{torch.tensor(1.23456):.2f} {torch.tensor(3)} {torch.tensor([1])}")
torch.set_printoptions(precision=2, sci_mode=False, linewidth=60)
say("options", lambda: (str(torch.randn(3, 12)), str(torch.tensor([1e-6, 1.0]))))
torch.set_printoptions(profile="full")
say("full", lambda: str(torch.arange(1200)))
""")
