"""What kernels are and what they are written with: TensorIR, layouts, formulas, knobs."""
