"""The papers' models, those of other projects' tables, and what to do about batch normalisation.

Every factory takes the shape of one sample and the number of classes. `simulate` fills in both from
the federation if it is given a factory.
"""

from counterpoise.models.batch_norm import with_norm
from counterpoise.models.convolutional import cnn3, cnn6, lenet5, light_cnn
from counterpoise.models.group_norm import with_group_norm
from counterpoise.models.language import lstm, transformer
from counterpoise.models.lora import merge_lora, with_lora
from counterpoise.models.mlp import linear, mlp
from counterpoise.models.others import conv2, moderate_cnn, vgg11
from counterpoise.models.registry import MODELS
from counterpoise.models.resnet import resnet18, resnet18_bn

__all__ = [
    "MODELS",
    "cnn3",
    "cnn6",
    "conv2",
    "lenet5",
    "light_cnn",
    "linear",
    "lstm",
    "merge_lora",
    "mlp",
    "moderate_cnn",
    "resnet18",
    "resnet18_bn",
    "transformer",
    "vgg11",
    "with_group_norm",
    "with_lora",
    "with_norm",
]
