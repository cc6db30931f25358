"""Heat maps as pictures: over the square that the model saw, and in rows of one class each."""

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont, ImageOps

from pbprompt.explain.colours import heat_colours
from pbprompt.explain.heat_maps import HeatMaps, Maps, Reading
from pbprompt.files import write_bytes

SIDE, GAP, LINE = 168, 6, 16  # pixels of a tile, between tiles, and of a line of text
INK, FAINT = "#24292f", "#57606a"


def overlay(
    image: Image.Image,
    heat: Float[np.ndarray, "h w"],
    low: float | None = None,
    high: float | None = None,
    side: int | None = None,
) -> Image.Image:
    """The centre square of the image, which is all that the model saw, under its heat.

    `low` and `high` are the coldest and the hottest value of the scale: those of the map itself unless given,
    so that colours are relative. `side`: pixels of the result; the image's shorter side unless given.
    """
    side = side or min(image.size)
    low = float(heat.min()) if low is None else low
    high = float(heat.max()) if high is None else high
    span = high - low
    relative = (heat - low) / span if span > 0 else np.zeros_like(heat)
    smooth = Image.fromarray(relative.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC)
    share = np.clip(np.asarray(smooth), 0, 1)  # bicubic overshoots at steep edges
    photo = np.asarray(ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BICUBIC), np.float32)
    opacity = (0.45 + 0.2 * share)[..., None]  # cold is tinted too, so that cold and untouched differ
    return Image.fromarray(np.rint(photo * (1 - opacity) + heat_colours(share) * opacity).astype(np.uint8))


def draw_heat_maps(maps: HeatMaps, image: Image.Image, reading: Reading = "prompt-to-patch") -> Image.Image:
    """A row per class: the square that the model saw, the mean map, and one map a sampled prompt.

    Colours are relative, and the range of a row's values is written above it. Prompt-to-patch has one scale
    for all maps of a class. Patch-to-prompt has one for each map, since its level is the probability p_c
    under that sample. The evidence has one for everything, from 0: a class that nothing speaks for stays
    dark.
    """
    heat = maps.of(reading)
    samples, classes = heat.shape[:2]
    columns = ["image", "mean", *(f"prompt {k}" for k in range(1, samples + 1))]
    if samples == 1:
        columns = ["image", "prompt"]
    step, row_height, header = SIDE + GAP, SIDE + 2 * LINE + 2 * GAP, LINE + 2 * GAP
    canvas = Image.new("RGB", (len(columns) * step + GAP, header + classes * row_height), "white")
    draw = ImageDraw.Draw(canvas)
    for column, title in enumerate(columns):
        _write(draw, (GAP + column * step, GAP), title, SIDE, FAINT)
    view = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE), Image.Resampling.BICUBIC)
    for row, (name, probability) in enumerate(zip(maps.classes, maps.probabilities, strict=True)):
        top, width = header + row * row_height, canvas.width - 2 * GAP
        low, high, scale = _scale(heat, row, reading, maps.temperature)
        _write(draw, (GAP, top), f"{name}, probability {probability:.1%}", width, INK)
        _write(draw, (GAP, top + LINE), f"{reading} {scale}", width, FAINT)
        shown = [heat[:, row].mean(0), *heat[:, row]] if samples > 1 else [heat[0, row]]
        for column, tile in enumerate([view, *(overlay(image, one, low, high, SIDE) for one in shown)]):
            canvas.paste(tile, (GAP + column * step, top + 2 * LINE))
    return canvas


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture as PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())


def _scale(
    heat: Maps, row: int, reading: Reading, temperature: float
) -> tuple[float | None, float | None, str]:
    """The coldest and the hottest value of a row, where its maps share them, and both in words."""
    low, high = float(heat[:, row].min()), float(heat[:, row].max())
    if reading == "prompt-to-patch":
        return low, high, f"{low:.3g} to {high:.3g} at T = {temperature:.3g}"
    if reading == "patch-to-prompt":
        return None, None, f"{low:.3g} to {high:.3g} at T = {temperature:.3g}, each map on its own scale"
    return 0.0, max(0.0, float(heat.max())), f"{low:.3g} to {high:.3g} logits, dark up to 0"


def _write(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, colour: str) -> None:
    """Text cut to a width."""
    font = ImageFont.load_default(12)
    shown = text
    while len(shown) > 1 and draw.textlength(shown, font) > width:
        shown = shown[:-2] + "…"
    draw.text(at, shown, fill=colour, font=font)
