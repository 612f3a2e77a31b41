"""Bring a folder of pictures of any size, with one folder inside for each class, whose name is the label.

To run it: python examples/bring_pictures.py
"""

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

import counterpoise as cp

with tempfile.TemporaryDirectory() as folder:
    for number in range(300):
        kind, end = ("disc", "square")[number % 2], 12 + number % 7
        draw = ImageDraw.Draw(picture := Image.new("L", (end + 3, end + 3)))
        (draw.ellipse if kind == "disc" else draw.rectangle)((2, 2, end, end), fill=200)
        place = Path(folder, "test" if number < 100 else "train", kind)
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{number}.png")
    federation = cp.Federation.from_datasets(folder, partition=cp.iid(clients=4), resize=16)

run = cp.simulate("fedavg", federation, model=cp.models.linear, rounds=10)
print(federation.class_names, run)
