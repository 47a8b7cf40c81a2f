"""Descriptors as DirectML's JSON models write them."""
