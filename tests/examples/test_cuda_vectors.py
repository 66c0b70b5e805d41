"""The CUDA example, with a CUDA driver that the tests compile: its kernel is written in C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
typedef unsigned long long u64;
static int fails(const char *call) {
    const char *bad = getenv("BAD");
    return bad && !strcmp(bad, call) ? 2 : 0; }
int cuInit(unsigned f) { (void)f; return fails("cuInit"); }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetName(char *name, int n, int d) {
    (void)d; strncpy(name, "Test GPU", n); return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int d) {
    (void)d; for (int i = 0; i < 16; i++) uuid[i] = i; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { (void)c; return 0; }
int cuMemAlloc_v2(u64 *p, size_t n) { *p = (u64)malloc(n); return fails("cuMemAlloc_v2"); }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuModuleLoadData(void **m, const char *ptx) {
    *m = (void *)1; return !strstr(ptx, ".entry multiply_add("); }
int cuModuleGetFunction(void **f, void *m, const char *name) {
    *f = m; return strcmp(name, "multiply_add"); }
int cuLaunchKernel(void *f, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty,
                   unsigned tz, unsigned shared, void *stream, void **with, void **extra) {
    (void)f; (void)shared; (void)stream; (void)extra;
    unsigned *one = *(unsigned **)with[0], *other = *(unsigned **)with[1];
    unsigned factor = *(unsigned *)with[2];
    u64 count = *(u64 *)with[3], all = (u64)blocks * threads;
    if (y * z * ty * tz != 1 || all < count) return 1;
    for (u64 i = 0; i < count; i++) other[i] += one[i] * factor;
    if (fails("data")) other[count - 1] ^= 1;
    return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuGetErrorName(int code, const char **name) {
    (void)code; *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0; }
"""

pytestmark = [pytest.mark.needs("cc")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(DRIVER)
    library = str(folder / "libcuda.so.1")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, folder / "cuda.c"], check=True)
    return folder


def ran(folder: Path, *options: str, bad: str = "") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"LD_LIBRARY_PATH": str(folder), "BAD": bad}
    command = [sys.executable, str(REPOSITORY / "examples/cuda_vectors.py"), *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_it_names_its_gpu_and_checks_every_element(folder: Path) -> None:
    done = ran(folder, "--mebibytes", "16", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    gpu, result = done.stdout.splitlines()
    assert gpu == "Test GPU, GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert result.startswith("3 rounds over 2097152 elements in ")
    assert result.endswith("every element is right")


def test_a_wrong_element_is_found(folder: Path) -> None:
    done = ran(folder, "--mebibytes", "16", "--rounds", "1", bad="data")
    assert (done.returncode, done.stderr) == (
        1,
        "the elements from 1048576 on are not as expected\n",
    )


def test_a_call_that_fails_is_named(folder: Path) -> None:
    done = ran(folder, bad="cuMemAlloc_v2")
    assert done.returncode == 1
    assert done.stderr == "cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2)\n"


def test_without_a_driver_it_says_where_to_run(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert done.returncode == 3
    assert "run this on a host with an NVIDIA GPU" in done.stderr
