"""``tvmdml bench``: every row of the performance goals, measured beside what else does the same work on this machine.

``cases`` says what is measured, ``peers`` who is measured against, ``measure`` how, and ``limits`` what the memory allows;
``runner`` brings them together, ``results`` keeps what came out, ``report`` and ``plot`` show it.
"""
