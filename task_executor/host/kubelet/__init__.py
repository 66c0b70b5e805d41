"""Finds the allocations and the settings of a kubelet on the same host.

`read_kubelet` returns a `KubeletState` from the texts of files that the helper has read. The
modules of this package open no files themselves.
"""

from task_executor.host.kubelet.parsing import KubeletTexts, read_kubelet
from task_executor.host.kubelet.state import KubeletContainer, KubeletState

__all__ = ["KubeletContainer", "KubeletState", "KubeletTexts", "read_kubelet"]
