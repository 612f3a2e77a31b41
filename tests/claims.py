"""Replies whose claims FedDua judges, without any training: what plain SGD would have sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from worlds import FixedWorld, cohort, server

from counterpoise.local import Local, sgd
from counterpoise.method import Cohort
from counterpoise.methods import feddua

D, BATCH, LR = 40, 8, 0.1
LOCAL = Local(batch=BATCH, optimizer=sgd(LR))
TRUE = np.array([20, 28, 36, 44, 52, 60, 68, 76, 84, 92, 100, 30])


def replies(true, claimed=None, *, ids=None, seed=0, told=None, updates=None, phi=None) -> Cohort:
    """Replies after one epoch of plain SGD: the update is -lr R g_bar, whatever the data."""
    rng = np.random.default_rng(seed)
    true = np.asarray(true, dtype=float)
    steps = np.ceil(true / BATCH)
    size = np.exp(0.1 * rng.standard_normal(len(true)))
    way = rng.standard_normal(D) + 0.3 * rng.standard_normal((len(true), D))
    d = way / np.linalg.norm(way, axis=1, keepdims=True) * (LR * steps * size)[:, None]
    reports = {"gradient": size, "alphas": (steps / true)[:, None]} | (told or {})
    if phi is not None:
        reports["branch"] = phi
    named = {k: torch.as_tensor(np.asarray(v), dtype=torch.float64) for k, v in reports.items()}
    ids = range(len(true)) if ids is None else ids
    return cohort(ids, d if updates is None else updates(d), true if claimed is None else claimed, {"counts": named})


def lying(factor=3.0, liar=3) -> np.ndarray:
    claimed = TRUE.astype(float)
    claimed[liar] = round(claimed[liar] * factor)
    return claimed


def world(round=1, local=LOCAL) -> FixedWorld:
    return FixedWorld(D, round=round, local=local, population=100)


def direct(**options):
    return feddua(**{"factor": "direct"} | options)


def judge(claimed, server_=None, round=1, local=LOCAL, **sent: Any):
    ours = server_ or server(direct(), D)
    return ours.receive(replies(sent.pop("true", TRUE), claimed, seed=round, **sent), world(round, local))
