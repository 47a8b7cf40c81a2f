"""ONNX Runtime's exceptions: names for those that are raised here. ``Fail`` and its like stand for every one of them."""

from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported

EPFail = EngineError = Fail = RuntimeException = TvmdmlError
InvalidGraph = InvalidProtobuf = ModelLoaded = NoModel = NoSuchFile = ModelError
NotImplemented = Unsupported  # noqa: A001 - its name there

__all__ = [
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
]
