"""An image tower of one product, where what comes after the tower is tested: it is traced in no time."""

import torch
from torch import Tensor, nn

from pbprompt.vision.towers.backbone import Backbone


class PlainTower(nn.Module):
    """Mean colours of a grid's cells, projected."""

    proj: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.side = backbone.grid[0]
        draws = torch.Generator().manual_seed(0)
        self.register_buffer("proj", torch.randn(3, backbone.embed_dim, generator=draws))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cells = nn.functional.avg_pool2d(x, x.shape[-1] // self.side)
        joint = cells.flatten(2).transpose(1, 2) @ self.proj
        return joint.mean(1), joint
