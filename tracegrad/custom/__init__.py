"""Operations that users write: Functions with a backward of their own, calls of Python, and OpenCL C."""
