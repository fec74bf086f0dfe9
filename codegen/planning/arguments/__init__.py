"""Numbers of kernels that become arguments, so that kernels which differ in numbers only are one."""
