"""The parts of NVIDIA's cuda.h that are used: values, structures and prototypes, under their original names."""

from __future__ import annotations

import ctypes

CUDA_SUCCESS = 0
CUDA_ERROR_OUT_OF_MEMORY = 2
CUDA_ERROR_NOT_INITIALIZED = 3
CUDA_ERROR_DEINITIALIZED = 4
CUDA_ERROR_STUB_LIBRARY = 34
CUDA_ERROR_DEVICE_UNAVAILABLE = 46
CUDA_ERROR_NO_DEVICE = 100
CUDA_ERROR_INVALID_IMAGE = 200
CUDA_ERROR_INVALID_CONTEXT = 201
CUDA_ERROR_NO_BINARY_FOR_GPU = 209
CUDA_ERROR_ECC_UNCORRECTABLE = 214
CUDA_ERROR_INVALID_PTX = 218
CUDA_ERROR_NVLINK_UNCORRECTABLE = 220
CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221
CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
CUDA_ERROR_JIT_COMPILATION_DISABLED = 223
CUDA_ERROR_CONTAINED = 226
CUDA_ERROR_INVALID_HANDLE = 400
CUDA_ERROR_NOT_FOUND = 500
CUDA_ERROR_ILLEGAL_ADDRESS = 700
CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
CUDA_ERROR_LAUNCH_TIMEOUT = 702
CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
CUDA_ERROR_ASSERT = 710
CUDA_ERROR_HARDWARE_STACK_ERROR = 714
CUDA_ERROR_ILLEGAL_INSTRUCTION = 715
CUDA_ERROR_MISALIGNED_ADDRESS = 716
CUDA_ERROR_INVALID_ADDRESS_SPACE = 717
CUDA_ERROR_INVALID_PC = 718
CUDA_ERROR_LAUNCH_FAILED = 719
CUDA_ERROR_TENSOR_MEMORY_LEAK = 721
CUDA_ERROR_NOT_SUPPORTED = 801
CUDA_ERROR_SYSTEM_NOT_READY = 802
CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804
CUDA_ERROR_MPS_CLIENT_TERMINATED = 810
CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
CUDA_ERROR_STREAM_CAPTURE_MERGE = 902
CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903
CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905
CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906
CUDA_ERROR_CAPTURED_EVENT = 907
CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908
CUDA_ERROR_EXTERNAL_DEVICE = 911

CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88
CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
CU_COMPUTEMODE_PROHIBITED = 2

CU_STREAM_NON_BLOCKING = 1
CU_STREAM_LEGACY = 1
CU_STREAM_PER_THREAD = 2
CU_STREAM_CAPTURE_STATUS_NONE = 0
CU_STREAM_CAPTURE_MODE_RELAXED = 2
CU_EVENT_DEFAULT = 0
CU_EVENT_DISABLE_TIMING = 2

CU_MEM_ALLOCATION_TYPE_PINNED = 1
CU_MEM_HANDLE_TYPE_NONE = 0
CU_MEM_LOCATION_TYPE_DEVICE = 1
CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4
CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5
CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7
CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2

CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0
CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3
CU_FUNC_ATTRIBUTE_NUM_REGS = 4

CU_LAUNCH_PARAM_END = 0
CU_LAUNCH_PARAM_BUFFER_POINTER = 1
CU_LAUNCH_PARAM_BUFFER_SIZE = 2


class CUmemLocation(ctypes.Structure):
    """The location of memory."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class CUmemPoolProps(ctypes.Structure):
    """The properties of a memory pool."""

    _fields_ = (
        ("allocType", ctypes.c_int),
        ("handleTypes", ctypes.c_int),
        ("location", CUmemLocation),
        ("win32SecurityAttributes", ctypes.c_void_p),
        ("maxSize", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class CUlaunchConfig(ctypes.Structure):
    """The configuration of a kernel launch."""

    _fields_ = (
        ("gridDimX", ctypes.c_uint),
        ("gridDimY", ctypes.c_uint),
        ("gridDimZ", ctypes.c_uint),
        ("blockDimX", ctypes.c_uint),
        ("blockDimY", ctypes.c_uint),
        ("blockDimZ", ctypes.c_uint),
        ("sharedMemBytes", ctypes.c_uint),
        ("hStream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint),
    )


LAUNCH_CONFIG = "@7IPPI"
"""``CUlaunchConfig`` as a format of the module struct: one call, where assigning the fields takes eight."""

_Int, _Uint, _Size = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_Handle = _Pointer = ctypes.c_void_p
_Address = ctypes.c_uint64

FUNCTIONS: dict[str, tuple[type, ...]] = {
    "cuInit": (_Uint,),
    "cuDevicePrimaryCtxRetain": (_Pointer, _Int),
    "cuCtxSynchronize": (),
    "cuStreamCreate": (_Pointer, _Uint),
    "cuStreamDestroy_v2": (_Handle,),
    "cuStreamIsCapturing": (_Handle, _Pointer),
    "cuStreamBeginCapture_v2": (_Handle, _Int),
    "cuStreamEndCapture": (_Handle, _Pointer),
    "cuGraphInstantiateWithFlags": (_Pointer, _Handle, ctypes.c_ulonglong),
    "cuGraphLaunch": (_Handle, _Handle),
    "cuGraphExecDestroy": (_Handle,),
    "cuGraphDestroy": (_Handle,),
    "cuStreamSynchronize": (_Handle,),
    "cuStreamWaitEvent": (_Handle, _Handle, _Uint),
    "cuEventCreate": (_Pointer, _Uint),
    "cuEventRecord": (_Handle, _Handle),
    "cuEventSynchronize": (_Handle,),
    "cuEventElapsedTime": (_Pointer, _Handle, _Handle),
    "cuMemAlloc_v2": (_Pointer, _Size),
    "cuMemFree_v2": (_Address,),
    "cuMemAllocFromPoolAsync": (_Pointer, _Size, _Handle, _Handle),
    "cuMemFreeAsync": (_Address, _Handle),
    "cuMemPoolCreate": (_Pointer, _Pointer),
    "cuMemPoolSetAttribute": (_Handle, _Int, _Pointer),
    "cuMemPoolGetAttribute": (_Handle, _Int, _Pointer),
    "cuMemPoolTrimTo": (_Handle, _Size),
    "cuMemGetInfo_v2": (_Pointer, _Pointer),
    "cuPointerGetAttribute": (_Pointer, _Int, _Address),
    "cuMemcpyHtoDAsync_v2": (_Address, _Pointer, _Size, _Handle),
    "cuMemcpyDtoHAsync_v2": (_Pointer, _Address, _Size, _Handle),
    "cuMemcpyDtoDAsync_v2": (_Address, _Address, _Size, _Handle),
    "cuModuleLoadData": (_Pointer, ctypes.c_char_p),
    "cuModuleGetFunction": (_Pointer, _Handle, ctypes.c_char_p),
    "cuFuncGetAttribute": (_Pointer, _Int, _Handle),
}
"""Functions that may wait: for the device, for space in a stream's queue, or for a lock. Python's interpreter lock is released
during the call. Launches are among them: a full stream may wait for another library's host function that needs the interpreter
lock, and keeping the lock would then be a deadlock.
"""

QUICK: dict[str, tuple[type, ...]] = {
    "cuDriverGetVersion": (_Pointer,),
    "cuDeviceGetCount": (_Pointer,),
    "cuDeviceGet": (_Pointer, _Int),
    "cuDeviceGetName": (_Pointer, _Int, _Int),
    "cuDeviceGetAttribute": (_Pointer, _Int, _Int),
    "cuDeviceTotalMem_v2": (_Pointer, _Int),
    "cuGetErrorName": (_Int, _Pointer),
    "cuGetErrorString": (_Int, _Pointer),
}
"""Functions that look something up and return. They keep Python's interpreter lock, because that costs less than releasing it."""

HOT = {
    "cuLaunchKernelEx": False,
    "cuCtxGetCurrent": True,
    "cuCtxPushCurrent_v2": True,
    "cuCtxPopCurrent_v2": True,
    "cuThreadExchangeStreamCaptureMode": True,
}
"""Functions that are part of every launch, and whether they are quick (they read only the thread's own state). No argument types
are declared for them, so that ctypes converts nothing: the caller passes ctypes objects.
"""
