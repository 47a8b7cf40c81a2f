"""``tvmdml bench``: every row of the performance goals, measured beside what else does the same work on this machine.

``cases`` says what is measured on a processor, and ``cuda_cases`` on a CUDA device; ``peers`` who is measured against, ``measure``
and ``events`` by which clock, ``limits`` and ``cuda_limits`` what the machine allows, ``venues`` which of these belong together.
``runner`` brings them together, ``results`` keeps what came out, ``report`` and ``plot`` show it.
"""
