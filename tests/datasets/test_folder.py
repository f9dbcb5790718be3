from __future__ import annotations

import io
import os
import struct
import tracemalloc
import warnings
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

from mixup_inference.datasets import base, image_file
from mixup_inference.datasets.image_folder import load_folder
from mixup_inference.errors import InputError, MixupInferenceWarning


def save(path: Path, image: Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def plain(value, size=(4, 4), mode="L") -> Image.Image:
    """An image of one colour; ``size`` is width and height."""
    return Image.new(mode, size, value)


def noise(width, height, *, seed=0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def two_classes(root: Path) -> Path:
    save(root / "a" / "1.png", plain(10))
    save(root / "b" / "1.png", plain(20))
    return root


def png(width, height, *, data=b"") -> bytes:
    """A PNG that declares a size and holds whatever data, with correct checksums."""

    def chunk(kind, content):
        tail = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + tail

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def values(part) -> list[int]:
    """The first pixel of each image."""
    return part.images[:, 0, 0, 0].tolist()


def test_classes_order_and_positions_of_an_undivided_folder(tmp_path):
    for value, name in enumerate(("b/2.png", "b/1.PNG", "b/deep/er/3.png", "a/z.png", "C/x.png")):
        save(tmp_path / name, plain(10 * value))
    save(tmp_path / "a" / ".hidden.png", plain(99))
    save(tmp_path / "a" / ".thumbs" / "1.png", plain(99))
    save(tmp_path / ".cache" / "1.png", plain(99))
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "readme.md").write_text("not an image")
    data = load_folder(tmp_path)
    assert data.test is None
    assert data.train.class_names == ("C", "a", "b")
    assert data.train.labels.tolist() == [0, 1, 2, 2, 2]
    assert values(data.train) == [40, 30, 10, 0, 20]
    assert data.train.index.tolist() == [0, 1, 2, 3, 4]
    assert data.train.images.dtype == torch.uint8
    assert data.train.images.shape == (5, 1, 4, 4)


def test_a_divided_folder(tmp_path):
    for value, name in enumerate(
        ("train/a/1.png", "train/b/1.png", "train/c/1.png", "test/c/1.png", "test/a/1.png")
    ):
        save(tmp_path / name, plain(10 * value))
    data = load_folder(tmp_path)
    assert data.train.class_names == data.test.class_names == ("a", "b", "c")
    assert (values(data.train), data.train.labels.tolist()) == ([0, 10, 20], [0, 1, 2])
    assert (values(data.test), data.test.labels.tolist()) == ([40, 30], [0, 2])  # b has no test
    assert data.train.index.tolist() == [0, 1, 2]
    assert data.test.index.tolist() == [3, 4]


def test_train_without_test_has_no_division(tmp_path):
    two_classes(tmp_path / "train")
    data = load_folder(tmp_path)
    assert data.test is None
    assert data.train.class_names == ("a", "b")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train/1.png", "train/fast/1.png", "bus/1.png", "plane/1.png"):
        save(tmp_path / name, plain(1))
    assert load_folder(tmp_path).train.class_names == ("bus", "plane", "train")


def test_a_third_folder_is_not_taken_for_a_class(tmp_path):
    two_classes(tmp_path / "train")
    two_classes(tmp_path / "val")
    with pytest.raises(InputError, match="beside it val, but no folder test"):
        load_folder(tmp_path)


def test_links(tmp_path):
    two_classes(tmp_path / "real")
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.png").symlink_to(tmp_path / "real" / "a" / "1.png")
    (tmp_path / "data" / "a" / "loop").symlink_to(tmp_path / "data" / "a")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "real" / "b")
    assert values(load_folder(tmp_path / "data").train) == [10, 20]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "nowhere", "there is no folder .*nowhere"),
        (lambda root: save(root / "x.png", plain(1)), r"x\.png is a file; give a folder"),
        (lambda root: root, "has no class folders. Put the images of each class"),
        (lambda root: save(root / "x.png", plain(1)).parent, r"outside of any class.*x\.png"),
        (lambda root: save(root / "a/x.png", plain(1)).parents[1], "only one class folder, 'a'"),
    ],
    ids=["missing", "a file", "empty", "images in the root", "one class"],
)
def test_folders_of_another_form(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        load_folder(make(tmp_path))


def test_images_right_below_train(tmp_path):
    for name in ("train/x.png", "test/y.png"):
        save(tmp_path / name, plain(1))
    with pytest.raises(InputError, match=r"train has images outside of any class.*x\.png"):
        load_folder(tmp_path)


def test_test_classes_must_be_known_and_have_images(tmp_path):
    two_classes(tmp_path / "train")
    (tmp_path / "test" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match=r"no images in the classes of .*test"):
        load_folder(tmp_path)
    save(tmp_path / "test" / "dog" / "1.png", plain(1))
    with pytest.raises(InputError, match=r"classes that .*train does not have: dog\. Rename"):
        load_folder(tmp_path)


def test_a_class_needs_a_readable_training_image(tmp_path):
    two_classes(tmp_path / "train")
    (tmp_path / "train" / "cat").mkdir()
    with pytest.raises(InputError, match=r"class 'cat' has no training image .* no PNG, JPEG or"):
        load_folder(tmp_path)
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"<html>")
    save(tmp_path / "test" / "cat" / "1.png", plain(1))  # that one does not count
    with pytest.raises(InputError, match=r"class 'cat'.*1\.png \(not a PNG, JPEG or WebP image\)"):
        load_folder(tmp_path)
    # A file whose header is fine and whose pixels are not is found out later, and says so too.
    whole = save(tmp_path / "x.jpg", noise(64, 64)).read_bytes()
    (tmp_path / "train" / "cat" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"class 'cat'.*1\.png \(image file is truncated"):
        load_folder(tmp_path, size=4)


def test_test_images_that_cannot_be_read_at_all(tmp_path):
    two_classes(tmp_path / "train")
    (tmp_path / "test" / "a").mkdir(parents=True)
    (tmp_path / "test" / "a" / "1.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"no test image can be read: .*1\.png"):
        load_folder(tmp_path)


def encoded(form) -> bytes:
    content = io.BytesIO()
    noise(64, 64).save(content, form)
    return content.getvalue()


def bad_files(root: Path) -> dict[str, str]:
    """Files that cannot be read, and what the warning says of each."""
    contents = {
        "bomb.png": (png(30000, 30000), "900000000 pixels"),
        "bomb2.png": (png(10000, 10000), "100000000 pixels"),  # Pillow only warns of it
        "bomb3.png": (png(8000, 8001), "8000x8001 is more than 64,000,000 pixels"),  # not even that
        "empty.webp": (b"", "not a PNG, JPEG or WebP image"),
        "gif.png": (encoded("GIF"), "not a PNG, JPEG or WebP image"),
        "page.png": (b"<!doctype html><title>404</title>", "not a PNG, JPEG or WebP image"),
        "truncated.jpg": (encoded("JPEG")[:-200], "truncated"),
        "truncated.png": (encoded("PNG")[:-200], "truncated"),
        "truncated.webp": (encoded("WEBP")[:-200], ""),
    }
    for name, (content, _) in contents.items():
        (root / name).write_bytes(content)
    (root / "link.png").symlink_to(root / "gone.png")
    os.mkfifo(root / "pipe.png")
    reason = "not a regular file, or a broken link"
    return {name: why for name, (_, why) in contents.items()} | {
        "link.png": reason,
        "pipe.png": reason,
    }


def test_unreadable_files_are_left_out_and_named(tmp_path):
    two_classes(tmp_path)
    save(tmp_path / "a" / "zz.png", plain(30))
    reasons = bad_files(tmp_path / "a")
    with pytest.warns(MixupInferenceWarning) as caught:
        data = load_folder(tmp_path, size=4)
    assert [type(w.message) for w in caught] == [MixupInferenceWarning]  # nothing of Pillow's own
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    assert f"{len(reasons)} of {len(reasons) + 3} image files" in text
    assert f"and {len(reasons) - 5} more" in text
    assert all(name in text for name in sorted(reasons)[:5])
    assert not any(name in text for name in sorted(reasons)[5:])
    # The gaps are closed and the rest is where it belongs.
    assert data.train.images.shape == (3, 1, 4, 4)
    assert values(data.train) == [10, 30, 20]
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.train.index.tolist() == [0, 1, 2]


def test_every_unreadable_file_has_its_reason(tmp_path):
    two_classes(tmp_path)
    for name, reason in bad_files(tmp_path / "a").items():
        only = tmp_path / "only"
        two_classes(only)
        (tmp_path / "a" / name).rename(only / "a" / name)
        with pytest.warns(MixupInferenceWarning, match=rf"1 of 3 .*{name} \([^;]*{reason}"):
            load_folder(only, size=4)
        (only / "a" / name).unlink()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_files_and_folders_without_permission(tmp_path):
    two_classes(tmp_path)
    save(tmp_path / "a" / "2.png", plain(1)).chmod(0)
    with pytest.warns(MixupInferenceWarning, match=r"2\.png \(Permission denied\)"):
        assert len(load_folder(tmp_path).train) == 2
    (tmp_path / "a" / "inner").mkdir(mode=0)
    with pytest.raises(InputError, match=r"cannot look into .*inner: Permission denied"):
        load_folder(tmp_path)


def test_a_file_that_the_system_refuses_to_open(tmp_path, monkeypatch):
    two_classes(tmp_path)
    save(tmp_path / "a" / "2.png", plain(1))
    real = Image.open

    def guarded(path, **options):
        if path.name == "2.png":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Image, "open", guarded)
    with pytest.warns(MixupInferenceWarning, match=r"2\.png \(Permission denied\)"):
        assert len(load_folder(tmp_path).train) == 2


def test_a_bomb_is_not_decoded(tmp_path, monkeypatch):
    two_classes(tmp_path)
    for name, side in (("x.png", 30000), ("y.png", 9000)):
        (tmp_path / "a" / name).write_bytes(png(side, side, data=bytes(100_000)))
    sizes = []
    real = ImageFile.ImageFile.load
    monkeypatch.setattr(
        ImageFile.ImageFile, "load", lambda self: (sizes.append(self.size), real(self))[1]
    )
    tracemalloc.start()
    with pytest.warns(MixupInferenceWarning, match="2 of 4"):
        load_folder(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(sizes) == {(4, 4)}
    assert peak < 20_000_000


def test_whole_folders_are_read_without_warnings(tmp_path):
    two_classes(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_folder(tmp_path)


def test_mixed_sizes_need_a_size(tmp_path, monkeypatch):
    two_classes(tmp_path)
    save(tmp_path / "b" / "large.png", plain(1, (30, 20)))
    save(tmp_path / "b" / "middle.png", plain(1, (8, 9)))
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
        with pytest.raises(InputError) as error:
            load_folder(tmp_path)
    text = str(error.value)
    assert "from 4x4 (" in text
    assert f"to 30x20 ({tmp_path / 'b' / 'large.png'})" in text
    assert "size=32 in Python, --size 32 on the command line" in text
    assert load_folder(tmp_path, size=5).train.images.shape == (4, 1, 5, 5)


def test_images_that_lie_and_stand_are_of_different_sizes(tmp_path):
    save(tmp_path / "a" / "1.png", plain(1, (6, 4)))
    save(tmp_path / "b" / "1.png", plain(1, (4, 6)))
    with pytest.raises(InputError, match=r"from 6x4 .* to 4x6"):
        load_folder(tmp_path)


def test_pixels_of_the_right_size_stay_as_they_are(tmp_path):
    images = [noise(7, 5, seed=seed) for seed in (0, 1)]
    save(tmp_path / "a" / "1.png", images[0])
    save(tmp_path / "b" / "1.webp", images[1], lossless=True)
    for size in (None, (5, 7)):
        data = load_folder(tmp_path, size=size).train
        assert data.images.shape == (2, 3, 5, 7)
        for row, image in zip(data.images, images, strict=True):
            assert torch.equal(row, torch.from_numpy(np.array(image)).permute(2, 0, 1))


def test_fitting_scales_the_shorter_side_and_cuts_out_the_centre(tmp_path):
    wide = Image.new("RGB", (40, 20), "red")
    wide.paste("lime", (8, 0, 32, 20))  # the central square, and what the filter reaches beside it
    tall = wide.transpose(Image.Transpose.ROTATE_90)
    save(tmp_path / "a" / "1.png", wide)
    save(tmp_path / "b" / "1.png", tall)
    square = load_folder(tmp_path, size=10).train.images
    assert (square == torch.tensor([0, 255, 0], dtype=torch.uint8).view(1, 3, 1, 1)).all()
    # (height, width): the wide one fits whole, the tall one loses its red ends
    oblong = load_folder(tmp_path, size=(10, 20)).train.images
    assert oblong.shape == (2, 3, 10, 20)
    assert oblong[0, :, 5, 0].tolist() == [255, 0, 0]
    assert oblong[1, :, 0, 10].tolist() == [0, 255, 0]


def test_fitting_agrees_with_pillow_on_a_photo_like_image(tmp_path):
    image = noise(50, 37)
    save(tmp_path / "a" / "1.png", image)
    save(tmp_path / "b" / "1.png", image)
    fitted = ImageOps.fit(image, (16, 16), Image.Resampling.BILINEAR)
    rows = load_folder(tmp_path, size=16).train.images
    assert torch.equal(rows[0], torch.from_numpy(np.array(fitted)).permute(2, 0, 1))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_exif_orientation(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if suffix == "jpg" else {"lossless": True}
    path = save(tmp_path / "a" / f"1.{suffix}", noise(8, 16), exif=exif, **options)
    save(tmp_path / "b" / f"1.{suffix}", noise(8, 16), exif=exif, **options)
    with Image.open(path) as image:
        expected = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    rows = load_folder(tmp_path).train.images  # no size: the upright ones must agree with it
    assert rows.shape[2:] == ((16, 8) if orientation < 5 else (8, 16))
    assert torch.equal(rows[0], torch.from_numpy(expected).permute(2, 0, 1))


def test_broken_exif_data_does_not_cost_the_image(tmp_path):
    two_classes(tmp_path)
    save(tmp_path / "a" / "2.jpg", plain(50), exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0\x01")
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "no\nhexadecimal\ndigits\nhere")
    save(tmp_path / "a" / "3.png", plain(60), pnginfo=text)
    with pytest.raises(ValueError, match="hexadecimal"), Image.open(tmp_path / "a/3.png") as image:
        image.getexif()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_folder(tmp_path)
    assert values(data.train) == [10, 50, 60, 20]


def test_channels(tmp_path):
    save(tmp_path / "a" / "1.png", plain(7))
    save(tmp_path / "a" / "2.png", plain(1, mode="1"))
    save(tmp_path / "b" / "1.jpg", plain(200))
    grey = load_folder(tmp_path).train
    assert grey.images.shape[1] == 1
    assert values(grey) == [7, 255, 200]
    colour = load_folder(tmp_path, channels=3).train.images
    assert torch.equal(colour, grey.images.expand(-1, 3, -1, -1))
    save(tmp_path / "b" / "2.png", plain((255, 0, 0), mode="RGB"))
    mixed = load_folder(tmp_path).train.images
    assert mixed.shape[1] == 3
    assert torch.equal(mixed[:3], colour)
    assert mixed[3, :, 0, 0].tolist() == [255, 0, 0]
    forced = load_folder(tmp_path, channels=1).train
    assert values(forced) == [7, 255, 200, 76]  # 0.299 * 255
    cmyk = save(tmp_path / "b" / "3.jpg", plain((0, 255, 255, 0), (16, 16), "CMYK"))
    red = load_folder(tmp_path, size=4).train.images[-1, :, 0, 0]
    assert cmyk.exists()
    assert red[0] > 200
    assert max(red[1:]) < 60


def test_colour_of_unreadable_images_does_not_count(tmp_path):
    two_classes(tmp_path)
    whole = save(tmp_path / "b" / "2.jpg", noise(64, 64)).read_bytes()
    (tmp_path / "b" / "2.jpg").write_bytes(whole[:-200])
    with pytest.warns(MixupInferenceWarning, match="truncated"):
        data = load_folder(tmp_path, size=4)
    assert data.train.images.shape == (2, 1, 4, 4)
    assert values(data.train) == [10, 20]


def test_16_bit_grey_is_scaled(tmp_path):
    levels = np.array([[0, 255, 256, 257 * 100], [32768, 257 * 254, 65280, 65535]], np.uint16)
    save(tmp_path / "a" / "1.png", Image.fromarray(levels))
    with Image.open(tmp_path / "a" / "1.png") as image:
        assert image.mode.startswith("I")  # it was stored with 16 bits
    save(tmp_path / "b" / "1.png", plain(1, (4, 2)))
    data = load_folder(tmp_path).train.images
    assert data.shape == (2, 1, 2, 4)
    assert data[0, 0].tolist() == [[0, 0, 1, 100], [128, 254, 255, 255]]


def test_transparency_is_laid_on_white(tmp_path):
    save(tmp_path / "a" / "1-clear.png", plain((255, 0, 0, 0), mode="RGBA"))
    save(tmp_path / "a" / "2-half.png", plain((0, 0, 0, 128), mode="RGBA"))
    save(tmp_path / "a" / "3-opaque.webp", plain((1, 2, 3, 255), mode="RGBA"), lossless=True)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 9, 9, 200, 100, 50])
    palette.putpixel((0, 0), 0)
    save(tmp_path / "b" / "1-palette.png", palette, transparency=0)
    save(tmp_path / "b" / "2-bytes.png", palette, transparency=bytes([255, 0]))
    save(tmp_path / "b" / "3-grey.png", plain((40, 0), mode="LA"))
    data = load_folder(tmp_path).train.images
    white = [255, 255, 255]
    assert data[0, :, 0, 0].tolist() == white
    assert data[1, :, 0, 0].tolist() == [127, 127, 127]
    assert data[2, :, 0, 0].tolist() == [1, 2, 3]
    assert data[3, :, 0, 0].tolist() == white
    assert data[3, :, 1, 1].tolist() == [200, 100, 50]
    assert data[4, :, 0, 0].tolist() == [9, 9, 9]
    assert data[4, :, 1, 1].tolist() == white
    assert data[5, :, 0, 0].tolist() == white


def test_grey_with_alpha_is_grey(tmp_path):
    save(tmp_path / "a" / "1.png", plain((40, 0), mode="LA"))
    save(tmp_path / "b" / "1.png", plain((40, 255), mode="LA"))
    data = load_folder(tmp_path).train
    assert data.images.shape[1] == 1
    assert values(data) == [255, 40]


@pytest.mark.parametrize("size", [0, -1, 2.5, "32", True, (3,), (1, 2, 3), (0, 3)])
def test_wrong_sizes(tmp_path, size):
    with pytest.raises(InputError, match="size must be"):
        load_folder(two_classes(tmp_path), size=size)


@pytest.mark.parametrize("channels", [0, 2, 4, "rgb"])
def test_wrong_channels(tmp_path, channels):
    with pytest.raises(InputError, match="channels must be 1"):
        load_folder(two_classes(tmp_path), channels=channels)


def test_too_much_for_the_memory(tmp_path, monkeypatch):
    two_classes(tmp_path)
    with pytest.raises(InputError, match=r"2 images of 20000000x20000000 .* need 800,000\.0 GB"):
        load_folder(tmp_path, size=20_000_000)
    monkeypatch.setattr(base, "_memory", lambda: 2 * 16 - 1)
    with pytest.raises(InputError, match="Give a smaller size"):
        load_folder(tmp_path)
    monkeypatch.setattr(base, "_memory", lambda: 2 * 16)
    assert len(load_folder(tmp_path).train) == 2


def test_memory_is_unlimited_where_the_system_does_not_say(monkeypatch):
    assert 1e8 < base._memory() < 1e14
    monkeypatch.setattr(os, "sysconf", lambda name: -1)
    assert base._memory() == float("inf")
    monkeypatch.delattr(os, "sysconf")
    assert base._memory() == float("inf")


def test_progress_is_told_of_every_file(tmp_path):
    class Listener:
        def __init__(self):
            self.told = {}

        @contextmanager
        def task(self, title, total):
            self.told[title] = [total, 0]
            self.title = title
            yield self

        def advance(self, steps=1, note=None):
            self.told[self.title][1] += steps

    two_classes(tmp_path)
    (tmp_path / "a" / "bad.png").write_bytes(b"")
    listener = Listener()
    with pytest.warns(MixupInferenceWarning):
        load_folder(tmp_path, progress=listener)
    assert listener.told == {"check images": [3, 3], "read images": [2, 2]}


def test_an_interruption_does_not_go_through_the_rest(tmp_path, monkeypatch):
    for number in range(200):
        save(tmp_path / "ab"[number % 2] / f"{number}.png", plain(1))
    decoded = []
    real = image_file.eight_bits
    monkeypatch.setattr(
        image_file, "eight_bits", lambda *inputs: (decoded.append(1), real(*inputs))[1]
    )

    class Impatient:
        @contextmanager
        def task(self, title, total):
            self.title = title
            yield self

        def advance(self, steps=1, note=None):
            if self.title == "read images":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_folder(tmp_path, progress=Impatient())
    assert len(decoded) < 200


def test_many_images_land_in_their_rows(tmp_path):
    for number in range(60):
        save(tmp_path / f"{number % 3}" / f"{number:02}.png", plain(number, (3, 2)))
    data = load_folder(tmp_path).train
    rows = [*range(0, 60, 3), *range(1, 60, 3), *range(2, 60, 3)]
    assert values(data) == rows
    assert data.labels.tolist() == [row % 3 for row in rows]
    assert data.images.is_contiguous()


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "validation")])
def test_parts_under_other_names_are_not_classes(tmp_path, names):
    for name in names:
        two_classes(tmp_path / name)
    with pytest.raises(InputError, match="look like parts of a data set"):
        load_folder(tmp_path)
