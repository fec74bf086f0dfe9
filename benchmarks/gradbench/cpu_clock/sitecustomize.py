"""Python's clock of `--clock cpu`: what tools call for the time that passes tells the processor's time. Found by PYTHONPATH."""

import time

time.perf_counter_ns = time.process_time_ns
