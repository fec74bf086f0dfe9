"""Programs as users write them, one a file, for any framework of PyTorch's idiom: see `benchmarks/first_call.py`.

program(f) makes the data and returns a function of no arguments that does one call and returns a number which all frameworks agree
on (those that draw their weights do not: the streams differ). f: `T` is the framework's namespace, `F` its nn.functional, `trace` its
@trace (the identity where there is none), `value_and_grad` its functional gradient.
"""

UNROLLED = ("wave", "wave_padded", "shallow_water", "neural_ode", "pendulum", "gru", "lstm")
STEPS = ("lstm_short", "convnet", "dcgan", "transformer", "vit")
