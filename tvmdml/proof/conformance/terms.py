"""The parts of a conformance run, and its default seed."""

RULES = "rules"
"""The part that runs no kernels."""
CASES = "cases"
"""The part that compares kernels with the reference."""
PARTS = (RULES, CASES, "models", "onnx")
SEED = 2024
"""The default seed of the inputs and of the draw. Reports with the same seed can be compared."""
