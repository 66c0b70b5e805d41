"""Computes with vectors on a GPU, without a CUDA toolkit, and checks every element of the result.

    finegrain run --gpu 0.5 -- python3 examples/cuda_vectors.py
    finegrain run --gpu 0.5 -- python3 examples/cuda_vectors.py --mebibytes 1024 --rounds 20

The program uses the first GPU that CUDA_VISIBLE_DEVICES names. It needs only the CUDA driver, which
also compiles the kernel. Each round adds 3 * x to y. The numbers are integers, so the result is
exact. Exit codes: 0: all elements are right; 1: an element is wrong, or a call failed; 3: the host
has no CUDA driver.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from array import array

DONE, FAILED, NO_DRIVER = 0, 1, 3
FACTOR = 3
CHUNK = 1 << 20  # number of elements to copy at once; all chunks of a vector are equal
ELEMENT_BYTES = 4
THREADS = 256

KERNEL = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry multiply_add(
    .param .u64 x_param, .param .u64 y_param, .param .u32 factor_param, .param .u64 count_param)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread, %factor, %one, %other;
    .reg .b64 %at, %count, %x, %y, %bytes;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %at, %thread;
    mul.wide.u32 %bytes, %block, %threads;
    add.u64 %at, %at, %bytes;
    ld.param.u64 %count, [count_param];
    setp.ge.u64 %past, %at, %count;
    @%past bra END;
    ld.param.u64 %x, [x_param];
    ld.param.u64 %y, [y_param];
    ld.param.u32 %factor, [factor_param];
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %y, %y;
    shl.b64 %bytes, %at, 2;
    add.u64 %x, %x, %bytes;
    add.u64 %y, %y, %bytes;
    ld.global.u32 %one, [%x];
    ld.global.u32 %other, [%y];
    mad.lo.u32 %other, %one, %factor, %other;
    st.global.u32 [%y], %other;
END:
    ret;
}
"""


class CudaError(Exception):
    """Says that a call of the CUDA driver failed."""


class Gpu:
    """The first GPU that this process sees.

    Args:
        cuda: the library of the driver.
    """

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self._cuda = cuda
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name, uuid = ctypes.create_string_buffer(128), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDeviceGetUuid", uuid, device)
        digits = bytes(uuid).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        self.name, self.uuid = name.value.decode(), "GPU-" + "-".join(parts)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Calls the driver.

        Raises:
            CudaError: the call failed.
        """
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            error = (text.value or b"unknown error").decode()
            raise CudaError(f"{name} failed: {error} ({code})")

    def vector(self, chunk: bytes, chunks: int) -> ctypes.c_uint64:
        """Makes a vector of equal chunks in the GPU's memory; returns its address."""
        start = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(start), ctypes.c_size_t(len(chunk) * chunks))
        for at in self._starts(start, len(chunk), chunks):
            self.call("cuMemcpyHtoD_v2", at, chunk, ctypes.c_size_t(len(chunk)))
        return start

    def wrong_chunk(self, start: ctypes.c_uint64, expected: bytes, chunks: int) -> int | None:
        """Returns the number of the first chunk of a vector that differs from `expected`, or None
        if all chunks are equal to `expected`.
        """
        found = ctypes.create_string_buffer(len(expected))
        for number, at in enumerate(self._starts(start, len(expected), chunks)):
            self.call("cuMemcpyDtoH_v2", found, at, ctypes.c_size_t(len(expected)))
            if found.raw != expected:
                return number
        return None

    def kernel(self) -> ctypes.c_void_p:
        """Compiles the kernel for this GPU."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"multiply_add")
        return function

    def add(
        self, kernel: ctypes.c_void_p, x: ctypes.c_uint64, y: ctypes.c_uint64, count: int
    ) -> None:
        """Adds FACTOR * x to y, and waits for the result."""
        values = (x, y, ctypes.c_uint32(FACTOR), ctypes.c_uint64(count))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        blocks = -(-count // THREADS)
        self.call("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")

    @staticmethod
    def _starts(start: ctypes.c_uint64, size: int, chunks: int) -> list[ctypes.c_uint64]:
        return [ctypes.c_uint64(start.value + number * size) for number in range(chunks)]


def first_values() -> tuple[bytes, bytes]:
    """Returns a chunk of x and a chunk of y before the first round."""
    x = array("I", range(CHUNK))
    y = array("I", (0xFFFFFFFF - number for number in range(CHUNK)))
    return x.tobytes(), y.tobytes()


def expected_values(rounds: int) -> bytes:
    """Returns a chunk of y after `rounds` rounds, modulo 2^32."""
    factor = FACTOR * rounds - 1
    return array(
        "I", ((0xFFFFFFFF + number * factor) % (1 << 32) for number in range(CHUNK))
    ).tobytes()


def compute(gpu: Gpu, mebibytes: int, rounds: int, pause_s: float) -> int:
    """Runs the rounds and checks the result; returns the exit code."""
    chunks = max(mebibytes * (1 << 20) // (CHUNK * ELEMENT_BYTES) // 2, 1)
    count = chunks * CHUNK
    begun = time.monotonic()
    chunk_of_x, chunk_of_y = first_values()
    x, y = gpu.vector(chunk_of_x, chunks), gpu.vector(chunk_of_y, chunks)
    kernel = gpu.kernel()
    for number in range(1, rounds + 1):
        gpu.add(kernel, x, y, count)
        if pause_s:
            print(f"round {number}", flush=True)
            time.sleep(pause_s)
    wrong = gpu.wrong_chunk(x, chunk_of_x, chunks)
    wrong = gpu.wrong_chunk(y, expected_values(rounds), chunks) if wrong is None else wrong
    if wrong is not None:
        sys.stderr.write(f"the elements from {wrong * CHUNK} on are not as expected\n")
        return FAILED
    seconds = time.monotonic() - begun
    print(f"{rounds} rounds over {count} elements in {seconds:.1f} s: every element is right")
    return DONE


def main() -> int:
    """Runs the program; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=64, help="memory to use (default: 64)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds to compute (default: 10)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each round")
    given = parser.parse_args()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.stderr.write(
            f"there is no CUDA driver here ({error}): run this on a host with an NVIDIA GPU and its"
            " driver, for example with finegrain run --gpu 1\n"
        )
        return NO_DRIVER
    try:
        gpu = Gpu(cuda)
        print(f"{gpu.name}, {gpu.uuid}", flush=True)
        return compute(gpu, given.mebibytes, given.rounds, given.pause)
    except CudaError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
