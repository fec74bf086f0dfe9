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
