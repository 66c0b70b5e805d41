"""Tests one GPU: copies data to the GPU's memory, within this memory and back, and compares the
data.

This program calls the CUDA driver with ctypes, and needs only the standard library. It tests the
first GPU that CUDA_VISIBLE_DEVICES names. Exit codes: 0: the GPU passed; 1: the GPU failed, and the
reason is on stderr; 3: no test was possible, because this host has no CUDA driver.
"""

from __future__ import annotations

import ctypes
import os
import sys

PASSED, FAILED, NOT_POSSIBLE = 0, 1, 3

BYTES = 64 << 20
_LIBRARY = "libcuda.so.1"


class CudaError(Exception):
    """A call of the CUDA driver failed."""


def main() -> int:
    """Runs the test. Returns the exit code."""
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        sys.stderr.write(f"no CUDA driver: {error}\n")
        return NOT_POSSIBLE
    try:
        check_memory(cuda, BYTES)
    except CudaError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return PASSED


def check_memory(cuda: ctypes.CDLL, size: int) -> None:
    """Copies `size` random bytes through two places of the GPU's memory and compares them.

    Raises:
        CudaError: a call failed, or the data came back changed.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    first, second = ctypes.c_uint64(), ctypes.c_uint64()
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(cuda, "cuCtxSetCurrent", context)
    sent = os.urandom(size)
    received = ctypes.create_string_buffer(size)
    length = ctypes.c_size_t(size)
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(first), length)
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(second), length)
    _call(cuda, "cuMemcpyHtoD_v2", first, sent, length)
    _call(cuda, "cuMemcpyDtoD_v2", second, first, length)
    _call(cuda, "cuMemcpyDtoH_v2", received, second, length)
    _call(cuda, "cuCtxSynchronize")
    if received.raw != sent:
        at = next(
            at
            for at, (one, other) in enumerate(zip(sent, received.raw, strict=True))
            if one != other
        )
        raise CudaError(f"memory does not keep its content: byte {at} of {size} came back changed")


def _call(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        error = (text.value or b"unknown error").decode()
        raise CudaError(f"{name} failed: {error} ({code})")


if __name__ == "__main__":
    sys.exit(main())
