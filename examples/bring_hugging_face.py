"""Bring data sets of Hugging Face: as they are, or from folders that `save_to_disk` wrote.

To run it: python examples/bring_hugging_face.py
"""

import tempfile
from pathlib import Path

import numpy as np
from datasets import Array2D, ClassLabel, Dataset, Features

import counterpoise as cp

draw = np.random.default_rng(0)
pixels = draw.integers(0, 256, (300, 4, 4), dtype=np.uint8)
labels = [int(picture[:2].sum() > picture[2:].sum()) for picture in pixels]
features = Features({"image": Array2D((4, 4), "uint8"), "label": ClassLabel(names=["dark top", "bright top"])})
pictures = Dataset.from_dict({"image": pixels, "label": labels}, features=features)

with tempfile.TemporaryDirectory() as folder:
    pictures.select(range(120)).save_to_disk(path := Path(folder, "north"))
    clients = {"north": path, "south": pictures.select(range(120, 200))}
    federation = cp.Federation.from_datasets(clients, test=pictures.select(range(200, 300)))
print(federation.class_names, run := cp.simulate("fedavg", federation, model=cp.models.linear, rounds=20))
