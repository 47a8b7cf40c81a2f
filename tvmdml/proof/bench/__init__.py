"""``tvmdml bench``: measures every row of the performance goals, next to other libraries that do the same work on this machine.

``rows`` has what is measured, in a file for each operator or family; ``peers`` the libraries to compare with;
``measure`` and ``events`` the clocks; ``limits`` and ``cuda_limits`` what the machine allows; ``venues`` which of these belong
together. ``runner`` runs the cases, ``results`` stores the figures; ``report``, ``page``, ``plot``, ``plot_operators`` show them.
"""
