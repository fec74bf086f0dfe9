"""From groups of the schedule to kernels, a file for each kind; `context` is what they share. Products and convolutions have packages of
their own beside this one."""
