"""HOW FAST: the schedules, in one folder for each family of targets, with one file for each operator.

A schedule is a module with a function ``kernel(desc, target, shared) -> Kernel``. It reads as a list of decisions. It runs at
the first call of each operation, where no compiler may be loaded: TensorIR is written only in the kernel's ``build``.
"""
