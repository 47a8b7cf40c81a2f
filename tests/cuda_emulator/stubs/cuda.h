// Kernels need nothing of it.
