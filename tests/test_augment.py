"""Augmentation keyed by sample."""

import pytest
import torch
from torch.nn import functional as F

from counterpoise.augment import AUGMENTS, crop, flip, flip_and_crop
from counterpoise.errors import CounterpoiseError
from counterpoise.randomness import counter


def pictures(n=200, shape=(2, 5, 7)):
    return torch.arange(n * torch.Size(shape).numel(), dtype=torch.float64).view(n, *shape) + 1


KEYS = counter(3, torch.arange(200))


def test_about_half_the_pictures_are_mirrored_and_none_is_otherwise_changed():
    x = pictures()
    y = flip()(x, KEYS)
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(x, y, strict=True)]
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, x, y, strict=True))
    assert 70 < sum(mirrored) < 130


def test_a_crop_is_a_window_of_the_framed_picture():
    x, padding = pictures(), 2
    y = crop(padding)(x, KEYS)
    assert y.shape == x.shape
    found = set()
    for a, b in zip(x, y, strict=True):
        framed = F.pad(a, (padding,) * 4)
        places = [(i, j) for i in range(5) for j in range(5) if torch.equal(framed[:, i : i + 5, j : j + 7], b)]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) == 25  # every shift occurs


def test_a_crop_takes_grey_pictures_without_a_channel():
    x = pictures(shape=(5, 7))
    assert torch.equal(crop(2)(x, KEYS), crop(2)(x[:, None], KEYS)[:, 0])


@pytest.mark.parametrize("entry", list(AUGMENTS), ids=lambda entry: entry.name)
def test_a_picture_depends_on_its_own_key_alone(entry):
    augment, x = entry.factory(), pictures()
    whole = augment(x, KEYS)
    order = torch.arange(199, -1, -1)
    assert torch.equal(augment(x[order], KEYS[order]), whole[order])
    assert torch.equal(augment(x[7:8], KEYS[7:8]), whole[7:8])
    assert not torch.equal(augment(x, counter(4, torch.arange(200))), whole)


def test_flip_and_crop_does_both():
    x = pictures()
    assert torch.equal(flip_and_crop(1)(x, KEYS), crop(1)(flip()(x, KEYS), KEYS))


def test_a_bad_frame_is_refused():
    with pytest.raises(
        CounterpoiseError, match="augmentation crop: option padding must be a whole number at least 1, not 0"
    ):
        crop(0)
