"""The papers' models, and the way out of batch normalisation.

Every factory takes the shape of one sample and the number of classes, both filled in from the
federation when a factory is given to `simulate`.
"""

from counterpoise.models.convolutional import cnn3, cnn6, lenet5, light_cnn
from counterpoise.models.group_norm import with_group_norm
from counterpoise.models.mlp import linear, mlp
from counterpoise.models.registry import MODELS
from counterpoise.models.resnet import resnet18

__all__ = ["MODELS", "cnn3", "cnn6", "lenet5", "light_cnn", "linear", "mlp", "resnet18", "with_group_norm"]
