"""The program that tests a GPU, with a CUDA driver that the tests compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from task_executor.host import cuda_probe

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
typedef unsigned long long u64;
static int fails(const char *call) {
    const char *bad = getenv("BAD");
    return bad && !strcmp(bad, call) ? 719 : 0; }
int cuInit(unsigned f) { (void)f; return fails("cuInit"); }
int cuDeviceGet(int *d, int n) { *d = n; return fails("cuDeviceGet"); }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { (void)c; return 0; }
int cuMemAlloc_v2(u64 *p, size_t n) { *p = (u64)malloc(n); return fails("cuMemAlloc_v2"); }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoD_v2(u64 to, u64 from, size_t n) { memcpy((void *)to, (void *)from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t n) {
    memcpy(to, (void *)from, n);
    if (fails("data")) ((char *)to)[4097] ^= 1;
    return 0; }
int cuCtxSynchronize(void) { return fails("cuCtxSynchronize"); }
int cuGetErrorName(int code, const char **name) {
    (void)code; *name = "CUDA_ERROR_LAUNCH_FAILED"; return 0; }
"""

pytestmark = [pytest.mark.needs("cc")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(DRIVER)
    library = str(folder / "libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "cuda.c"], check=True)
    return folder


def probe(folder: Path, bad: str = "") -> tuple[int, str]:
    env = os.environ | {"LD_LIBRARY_PATH": str(folder), "BAD": bad}
    command = [sys.executable, "-I", cuda_probe.__file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.strip()


def test_a_gpu_that_works(folder: Path) -> None:
    assert probe(folder) == (cuda_probe.PASSED, "")


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGet", "cuMemAlloc_v2", "cuCtxSynchronize"])
def test_a_call_that_fails(call: str, folder: Path) -> None:
    expected = f"{call} failed: CUDA_ERROR_LAUNCH_FAILED (719)"
    assert probe(folder, call) == (cuda_probe.FAILED, expected)


def test_memory_that_does_not_keep_its_content(folder: Path) -> None:
    code, said = probe(folder, "data")
    assert code == cuda_probe.FAILED
    assert f"byte 4097 of {cuda_probe.BYTES} came back changed" in said


def test_without_a_driver_nothing_is_known(tmp_path: Path) -> None:
    code, said = probe(tmp_path)
    assert code == cuda_probe.NOT_POSSIBLE
    assert said.startswith("no CUDA driver")
