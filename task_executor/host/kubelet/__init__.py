"""What a kubelet on the same host has allocated, and with which settings.

`read_kubelet` turns the files that the helper has read into a `KubeletState`. No module here opens
a file.
"""

from task_executor.host.kubelet.parsing import KubeletTexts, read_kubelet
from task_executor.host.kubelet.state import KubeletContainer, KubeletState

__all__ = ["KubeletContainer", "KubeletState", "KubeletTexts", "read_kubelet"]
