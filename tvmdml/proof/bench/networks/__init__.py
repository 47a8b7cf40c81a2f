"""Networks in the forms of well-known ones, with made-up weights: those that ``tvmdml bench --models`` and tests export.

``table`` has them all. The others need PyTorch: a file for each kind of data, and ``exporting``, which writes ONNX files.
"""
