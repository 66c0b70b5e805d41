"""A kubelet on the same host: what it has given away, and by which settings.

`read_kubelet` turns what the helper has read of it into a `KubeletState`. Checkpoints and
configuration each have a module; none of them touches a file.
"""

from task_executor.host.kubelet.parsing import KubeletTexts, read_kubelet
from task_executor.host.kubelet.state import KubeletContainer, KubeletState

__all__ = ["KubeletContainer", "KubeletState", "KubeletTexts", "read_kubelet"]
