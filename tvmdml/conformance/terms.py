"""The parts of a conformance run, and its default seed."""

RULES = "rules"
"""The part that runs no kernels."""
PARTS = (RULES, "cases", "models", "onnx")
SEED = 2024
"""The default seed of the inputs. Reports with the same seed can be compared."""
