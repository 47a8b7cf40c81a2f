"""Packs: compiled kernels in one file, built ahead of time, run where no compiler is."""
