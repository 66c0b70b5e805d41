"""Reads the allocations and the settings of a kubelet on the same host.

`read_kubelet` turns the files that the helper has read into a `KubeletState`. No module here opens
a file.
"""

from task_executor.host.kubelet.parsing import KubeletTexts, read_kubelet
from task_executor.host.kubelet.state import KubeletContainer, KubeletState

__all__ = ["KubeletContainer", "KubeletState", "KubeletTexts", "read_kubelet"]
