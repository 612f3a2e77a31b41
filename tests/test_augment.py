"""Augmentation keyed by sample."""

import numpy as np
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


def places_of(framed, cut):
    """Where a window lies in a framed picture."""
    (tall, wide), (height, width) = cut.shape[-2:], framed.shape[-2:]
    return [
        (i, j)
        for i in range(height - tall + 1)
        for j in range(width - wide + 1)
        if np.array_equal(framed[..., i : i + tall, j : j + wide], cut)
    ]


def test_a_frame_may_mirror_the_picture_at_its_edges():
    x = pictures()
    y = crop(2, fill="reflect")(x, KEYS)
    found = set()
    for a, b in zip(x.numpy(), y.numpy(), strict=True):
        places = places_of(np.pad(a, ((0, 0), (2, 2), (2, 2)), mode="reflect"), b)
        assert places
        found |= set(places) if len(places) == 1 else set()
    assert len(found) == 25
    assert (y > 0).all()  # no pixel of these pictures is zero


@pytest.mark.parametrize("padding", [0, 1])
def test_a_crop_to_a_smaller_size_is_a_window_of_that_size_anywhere(padding):
    x = pictures()
    y = crop(padding, size=4)(x, KEYS)
    assert y.shape == (200, 2, 4, 4)
    found = set()
    for a, b in zip(x.numpy(), y.numpy(), strict=True):
        places = places_of(np.pad(a, ((0, 0), (padding,) * 2, (padding,) * 2)), b)
        assert len(places) == 1
        found.add(places[0])
    assert len(found) == (2 + 2 * padding) * (4 + 2 * padding)


@pytest.mark.parametrize(("size", "centre"), [(None, slice(None)), (3, slice(2, 5))])
def test_some_pictures_are_left_at_their_centre(size, centre):
    x = pictures(shape=(2, 7, 7))
    y = crop(3, chance=0.25, size=size)(x, KEYS)
    left = torch.tensor([torch.equal(a[:, centre, centre], b) for a, b in zip(x, y, strict=True)])
    assert 0.65 < left.double().mean() < 0.85
    always = crop(3, size=size)(x, KEYS)
    assert torch.equal(y[~left], always[~left])  # the others are where they would be without a chance


def test_a_crop_takes_grey_pictures_without_a_channel():
    x = pictures(shape=(5, 7))
    assert torch.equal(crop(2)(x, KEYS), crop(2)(x[:, None], KEYS)[:, 0])
    assert torch.equal(crop(2, "reflect", 0.5, 3)(x, KEYS), crop(2, "reflect", 0.5, 3)(x[:, None], KEYS)[:, 0])


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
    for options in ((1,), (2, "reflect", 0.5, 4)):
        assert torch.equal(flip_and_crop(*options)(x, KEYS), crop(*options)(flip()(x, KEYS), KEYS))


@pytest.mark.parametrize(
    ("make", "shape", "sentence"),
    [
        (lambda: crop(-1), (2, 5, 7), "option padding must be a whole number at least 0, not -1"),
        (lambda: crop(0), (2, 5, 7), "crop changes nothing without padding; give it padding or a size"),
        (lambda: crop(5, fill="reflect"), (2, 5, 7), "a picture of 5 x 7 pixels cannot be mirrored by 5 at its edges"),
        (lambda: crop(0, size=6), (2, 5, 7), "5 x 7 pixels cannot be cropped to a size of 6"),
        (lambda: crop(), (7,), r"crop is for pictures, but these samples have shape \(7,\)"),
        (lambda: crop(fill="ones"), (2, 5, 7), "option fill must be one of zeros, reflect, not 'ones'"),
        (lambda: crop(chance=0), (2, 5, 7), "option chance must be a number above 0 and at most 1, not 0"),
    ],
)
def test_what_cannot_be_cropped_is_told(make, shape, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()(pictures(shape=shape), KEYS)
