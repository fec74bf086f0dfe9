"""Programs as users write them, for any framework of PyTorch's idiom: see `benchmarks/first_call.py`.

A program, given f, makes the data and returns a function of no arguments that does one call and returns a number which all frameworks agree
on (those that draw their weights do not: the streams differ). f: `T` is the framework's namespace, `F` its nn.functional, `trace` its
@trace (the identity where there is none), `value_and_grad` its functional gradient.
"""

from __future__ import annotations

from functools import partial

from benchmarks.traced import convnet, dcgan, neural_ode, pendulum, recurrent, shallow_water, transformer, vit, wave

PROGRAMS = {
    "wave": wave.program, "wave_padded": partial(wave.program, padded=True), "shallow_water": shallow_water.program,
    "neural_ode": neural_ode.program, "pendulum": pendulum.program, "gru": partial(recurrent.program, layer="GRU"),
    "lstm": partial(recurrent.program, layer="LSTM"), "lstm_short": recurrent.classifier, "convnet": convnet.program,
    "dcgan": dcgan.program, "transformer": transformer.program, "vit": vit.program,
}
