"""The place of ``onnxruntime.capi``, from which programs take exceptions."""

from tvmdml.onnx.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
