"""Loggers tell other programs about a run while it is running: TensorBoard, MLflow, W&B, or your own.

A logger is three functions; `simulate(log=...)` takes one, several, or their names.
"""

from counterpoise.errors import guard
from counterpoise.logs.base import LOGGERS, Logger, logged, scalars
from counterpoise.logs.mlflow import mlflow
from counterpoise.logs.tensorboard import tensorboard
from counterpoise.logs.wandb import wandb

__all__ = ["LOGGERS", "Logger", "logged", "mlflow", "scalars", "tensorboard", "wandb"]

guard(__name__)
