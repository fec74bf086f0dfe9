"""Lines that stand at the head of programs for torch run as they stand."""

import pytest

import tracegrad as tg


def test_what_programs_ask_before_they_start():
    device = tg.device("cuda" if tg.cuda.is_available() else "cpu")
    tg.cuda.manual_seed_all(0)
    tg.backends.cudnn.deterministic, tg.backends.cudnn.benchmark = True, False
    x = tg.ones(3, device="mps" if tg.backends.mps.is_available() else device)
    assert (x.device.type, tg.cuda.device_count(), tg.device("numpy").type) == ("cpu", 0, "cpu")
    with pytest.raises(AttributeError, match=r"backends\.cudnn has no switch 'deterministc', only enabled"):
        tg.backends.cudnn.deterministc = True


def test_mixed_precision_is_off_as_in_torch_where_there_is_no_cuda():
    model = tg.nn.Linear(3, 2)
    optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="GradScaler is switched off: there is no CUDA here") as seen:
        scaler = tg.cuda.amp.GradScaler()
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match="autocast is switched off") as seen, tg.autocast("cuda", dtype=tg.float16):
        loss = model(tg.ones(4, 3)).pow(2).mean()
    assert seen[0].filename == __file__
    assert loss.dtype == tg.float32
    before = model.weight.detach().clone()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert tg.allclose(model.weight, before - 0.1 * model.weight.grad)
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()) == (False, 1.0, {})

    @tg.cuda.amp.autocast(enabled=False)
    def double(x):
        return x * 2

    assert double(tg.ones(2)).tolist() == [2, 2]
    with tg.amp.autocast("cpu", enabled=False):
        assert (tg.ones(2, 2) @ tg.ones(2, 2)).dtype == tg.float32
