"""The experts, in their order; a new kind of evidence is a `Kind` in a file and a line here.

A model saves an expert's tensors under its name, and leaves out `photographs`, `labels` and `classes`: those
are kept anyhow.
"""

from collections.abc import Mapping

from pbprompt.evidence.expert import Kind
from pbprompt.evidence.experts import gaussian, kernel, name, patches

EXPERTS: Mapping[str, Kind] = {
    "gaussians": gaussian.EXPERT,
    "kernel": kernel.EXPERT,
    "nearest": kernel.NEAREST,
    "names": name.EXPERT,
    "patches": patches.EXPERT,
}
