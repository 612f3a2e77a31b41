"""ResNet-18 with group or with batch normalisation, for small images or with torchvision's stem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from counterpoise.errors import CounterpoiseError
from counterpoise.models.batch_norm import NORMS, Norm, with_norm
from counterpoise.models.registry import MODELS, Channel, Layers, image
from counterpoise.registry import Option

__all__ = ["resnet18", "resnet18_bn"]

Normalisation = Callable[[int], nn.Module]
"""``channels -> layer``"""
Stem = Annotated[
    Literal["3x3", "7x7"],
    Option("3x3 for small images; 7x7 with stride 2, max-pooling and initial weights as torchvision's"),
]


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (He et al. 2016, figure 5, left)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.short(inputs))


@MODELS.register("resnet18")
def resnet18(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    groups: Annotated[int, Option("groups of each normalisation; must divide 64", low=1, high=64)] = 32,
    stem: Stem = "3x3",
) -> nn.Module:
    """ResNet-18 with group norm and a 3 x 3 stem for small images (FedOAED, FedA4).

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    if 64 % groups:
        raise CounterpoiseError(f"model resnet18: option groups must divide 64, but {groups} does not.")
    return _resnet18("resnet18", shape, classes, stem, lambda channels: nn.GroupNorm(groups, channels))


@MODELS.register("resnet18-bn")
def resnet18_bn(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    stem: Stem = "3x3",
    *,
    norm: Annotated[Norm, Option(f"what becomes of its statistics: {', '.join(NORMS)}")],
) -> nn.Module:
    """ResNet-18 with batch norm and a 3 x 3 stem for small images.

    >>> sum(p.numel() for p in resnet18_bn(norm="batch").parameters())
    11173962
    """
    return with_norm(_resnet18("resnet18-bn", shape, classes, stem, nn.BatchNorm2d), norm)


def _resnet18(name: str, shape: Sequence[int], classes: int, stem: str, norm: Normalisation) -> nn.Module:
    channels, _, _ = image(name, shape, 8)
    blocks: list[nn.Module] = []
    width = 64
    for outputs in (64, 128, 256, 512):
        blocks += [_Block(width, outputs, 1 if outputs == 64 else 2, norm), _Block(outputs, outputs, 1, norm)]
        width = outputs
    large = stem == "7x7"
    model = Layers(
        Channel(),
        nn.Conv2d(channels, 64, 7, 2, 3, bias=False) if large else nn.Conv2d(channels, 64, 3, 1, 1, bias=False),
        norm(64),
        nn.ReLU(),
        *([nn.MaxPool2d(3, 2, 1)] if large else []),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )
    for layer in model.modules() if large else ():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model
