"""The images: synthetic ones, or a folder's; and the batches in which the ranks share them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from point import ImageError, TrainingError
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

#: Of ImageNet's images, red, green, blue in [0, 1]: what published ResNets subtract and divide by.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: A training crop's share of the image, and its width / height: C. Szegedy et al., arXiv:1409.4842, section 6.
CROP_AREA, CROP_ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
VALIDATION_SCALE = 256 / 224  #: the shorter side before the middle is cut out, in units of what is cut out
NOISES, NOISE = 64, 2.0  #: of the synthetic images: how many patterns of noise, and their standard deviation

#: What a Dataset here is asked for: (index of the image, seed of its augmentation, or -1 to leave it as it is).
Key = tuple[int, int]
Sample = tuple[torch.Tensor, int]


class SyntheticImages(Dataset[Sample]):
    """Made images: each class has a pattern of 8 × 8 colours, shifted at random, under noise twice as strong.

    The same on every rank and in every run; an image costs an addition, so that the input is not what is measured.
    """

    def __init__(self, images: int, classes: int, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.size = size
        self.labels = [index % classes for index in range(images)]
        coarse = torch.randn(classes, 3, 8, 8, generator=generator)
        self.patterns = interpolate(coarse, size=(size, size), mode="bilinear") if classes <= 64 else coarse
        self.noise = NOISE * torch.randn(NOISES, 3, size, size, generator=generator)
        self.shifts = torch.randint(size, (images, 2), generator=generator).tolist()
        self.noises = torch.randint(NOISES, (images,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: Key) -> Sample:
        """The image of shape (3, size, size) and its class; mirrored at random in training."""
        index, seed = key
        label = self.labels[index]
        pattern = self.patterns[label]
        if pattern.shape[-1] != self.size:  # a thousand classes of full size would need gigabytes
            pattern = interpolate(pattern[None], size=(self.size, self.size), mode="nearest")[0]
        image = pattern + self.noise[self.noises[index]].roll(self.shifts[index], dims=(1, 2))
        return (image.flip(2) if seed >= 0 and seed % 2 else image), label


class FolderImages(Dataset[Sample]):
    """Image files, read with Pillow: a random crop, mirrored at random, to train on; else the middle."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], size: int) -> None:
        try:
            import PIL.Image as pillow  # noqa: PLC0415  only who has files needs it
        except ImportError as error:
            raise TrainingError("--data needs Pillow to read images: pip install pillow") from error
        self.paths, self.labels, self.size = paths, list(labels), size
        self.bilinear = pillow.Resampling.BILINEAR if hasattr(pillow, "Resampling") else pillow.BILINEAR

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: Key) -> Sample:
        """The image of shape (3, size, size), normalized, and its class.

        Raises:
            ImageError: the file is no image.
        """
        from PIL import Image  # noqa: PLC0415  as above; here too for workers of a loader

        index, seed = key
        side = self.size
        try:
            with Image.open(self.paths[index]) as file:
                picture = file.convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all of them for damaged files
            raise ImageError(f"{self.paths[index]} cannot be read as an image: {error}") from error
        mirrored = False
        if seed >= 0:
            generator = torch.Generator().manual_seed(seed)
            box = random_crop(picture.width, picture.height, generator)
            mirrored = bool(torch.rand((), generator=generator) < 0.5)
        else:
            cut = min(picture.width, picture.height) / VALIDATION_SCALE
            left, top = (picture.width - cut) / 2, (picture.height - cut) / 2
            box = (left, top, left + cut, top + cut)
        picture = picture.resize((side, side), self.bilinear, box=box)
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(side, side, 3)
        image = (pixels / 255.0 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
        image = image.permute(2, 0, 1)
        return (image.flip(2) if mirrored else image), self.labels[index]


def random_crop(width: int, height: int, generator: torch.Generator) -> tuple[float, float, float, float]:
    """A part of an image as (left, top, right, bottom): area and aspect are drawn from CROP_AREA and CROP_ASPECT."""
    for _ in range(10):
        area, aspect, across, down = torch.rand(4, generator=generator).tolist()
        area = width * height * (CROP_AREA[0] + area * (CROP_AREA[1] - CROP_AREA[0]))
        ratio = CROP_ASPECT[0] * (CROP_ASPECT[1] / CROP_ASPECT[0]) ** aspect
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = across * (width - wide), down * (height - high)
            return left, top, left + wide, top + high
    return 0.0, 0.0, float(width), float(height)  # a very long image: all of it


class Batches:
    """This rank's share of each pass of an epoch, as keys for a dataset. Each image goes to one rank.

    Args:
        indices: of the images that are trained on.
        batch: images of a pass of all ranks together.
        passes: passes of a step. What does not fill a step is left out, other images in each epoch.
    """

    def __init__(self, indices: Sequence[int], batch: int, passes: int, rank: int, size: int, seed: int) -> None:
        self.indices, self.batch, self.passes = torch.tensor(indices), batch, passes
        self.rank, self.size, self.seed = rank, size, seed
        self.steps = len(indices) // (batch * passes)
        if batch < size:
            raise TrainingError(f"a batch of {batch} leaves some of {size} ranks without images")
        if self.steps == 0:
            raise TrainingError(f"{len(indices)} images are less than a step of {passes} x {batch}")

    def epoch(self, epoch: int) -> Iterator[list[Key]]:
        """One list for each pass; the seed of an image's augmentation does not depend on the number of ranks."""
        seed = self.seed * 1_000_003 + epoch
        order = self.indices[torch.randperm(len(self.indices), generator=torch.Generator().manual_seed(seed))]
        for part in order[: self.steps * self.passes * self.batch].split(self.batch):
            yield [(index, hash((seed, index)) & 0x7FFF_FFFF) for index in part[self.rank :: self.size].tolist()]


def validation_keys(indices: Sequence[int], batch: int, rank: int, size: int) -> list[list[Key]]:
    """This rank's share of the images held out, in batches."""
    mine = indices[rank::size]
    return [[(index, -1) for index in mine[start : start + batch]] for start in range(0, len(mine), batch)]
