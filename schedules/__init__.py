"""HOW FAST: the schedules, one folder for each family of targets, one file for each operator in it.

A schedule is a module with a function ``kernel(desc, target, in_place) -> Kernel``. It reads as a list of decisions. It runs on
every first call of a form, where no compiler may be loaded: TensorIR is written only in the kernel's ``build``.
"""
