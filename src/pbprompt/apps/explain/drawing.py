"""Heat maps and captions as pictures: over or beside the square that the model saw."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageColor, ImageDraw, ImageFont, ImageOps

from pbprompt.apps.explain.heat_maps import HeatMaps, Maps, Reading
from pbprompt.apps.explain.prompts import PromptCaptions
from pbprompt.files import write_bytes
from pbprompt.vision.images.crops import Crop, Fit
from pbprompt.vision.images.images import encoded_image

SIDE, GAP, LINE = 168, 6, 16  # pixels of a tile, between tiles, and of a line of text
SAME = 0.02  # of the largest value: maps that differ by less are one
CLEAR = 2  # times its mean that a place of a plan must have for full colour
INK, FAINT = "#24292f", "#57606a"
# Colours of heat from dark blue over red to pale yellow, equally spaced from 0 to 1. Lightness only
# rises: the scale reads right in grey and to the colour-blind.
COLOURS = "#0a082c", "#421268", "#82206e", "#c13752", "#ec682a", "#faac24", "#fdf8b0"
ANCHORS = np.array([ImageColor.getrgb(colour) for colour in COLOURS])


def heat_colours(heat: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """RGB of every value between 0 and 1; values outside take the colour of the nearer end."""
    at = np.linspace(0, 1, len(ANCHORS))
    channels = [np.interp(heat, at, channel) for channel in ANCHORS.T]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def seen(image: Image.Image, side: int | None = None, fit: Fit = "crop", cropped: float = 1.0) -> Image.Image:
    """The square of the image that the model saw: its centre, of `cropped` of the shorter side, or (`fit`)
    the whole, squashed or with a border. `side`: pixels of the result; the shorter side unless given."""
    side, image = side or min(image.size), image.convert("RGB")
    if fit == "squash":
        return image.resize((side, side), Image.Resampling.BICUBIC)
    if fit == "pad":
        return Crop(side, "pad")(image)
    return ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC, bleed=(1 - cropped) / 2)


def overlay(square: Image.Image, heat: Float[np.ndarray, "h w"], hottest: float | None = None) -> Image.Image:
    """A square under its heat.

    `hottest` is the value of full colour, 0 that of none; `full_colour` of the map unless given.
    """
    hottest = full_colour(heat) if hottest is None else hottest
    relative = heat / hottest if hottest > 0 else np.zeros_like(heat)
    smooth = Image.fromarray(relative.astype(np.float32)).resize(square.size, Image.Resampling.BICUBIC)
    share = np.clip(np.asarray(smooth), 0, 1)  # bicubic overshoots at steep edges
    opacity = (0.45 + 0.2 * share)[..., None]  # cold is tinted too, so that cold and untouched differ
    mixed = np.asarray(square, np.float32) * (1 - opacity) + heat_colours(share) * opacity
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def full_colour(heat: Float[np.ndarray, "*s h w"]) -> float:
    """The value of a plan that is drawn in full colour: its highest, but at least twice its mean.

    A plan that hardly prefers a place is drawn as even as it is: stretched to all colours it would point at
    a bare wall.
    """
    return max(float(heat.max()), CLEAR * float(heat.mean()))


def draw_heat_maps(maps: HeatMaps, image: Image.Image, reading: Reading = "contribution") -> Image.Image:
    """A row per class: the square that the model saw, the mean map, and one map per sampled prompt.

    All colours start at 0, and the range of a row's values is written above it. The contribution has one
    scale for everything: a class that nothing speaks for stays dark. Prompt-to-patch has one for all maps of
    a class. Patch-to-prompt has one for each map, since its level is the probability p_c under that sample.
    """
    heat = maps.of(reading)
    if np.abs(heat - heat[:1]).max() <= SAME * np.abs(heat).max():  # no prompts are sampled
        heat = heat[:1]
    samples, classes = heat.shape[:2]
    columns = ["image", "mean", *(f"prompt {k}" for k in range(1, samples + 1))]
    if samples == 1:
        columns = ["image", "prompt"]
    step, row_height, header = SIDE + GAP, SIDE + 2 * LINE + 2 * GAP, LINE + 2 * GAP
    canvas = Image.new("RGB", (len(columns) * step + GAP, header + classes * row_height), "white")
    draw = ImageDraw.Draw(canvas)
    for column, title in enumerate(columns):
        write(draw, (GAP + column * step, GAP), title, SIDE, FAINT)
    view = seen(image, SIDE, maps.fit, maps.cropped)
    for row, (name, probability) in enumerate(zip(maps.classes, maps.probabilities, strict=True)):
        top, width = header + row * row_height, canvas.width - 2 * GAP
        hottest, scale = _scale(heat, row, reading, maps.temperature)
        write(draw, (GAP, top), f"{name}, probability {probability:.1%}", width, INK)
        write(draw, (GAP, top + LINE), f"{reading} {scale}", width, FAINT)
        shown = [heat[:, row].mean(0), *heat[:, row]] if samples > 1 else [heat[0, row]]
        for column, tile in enumerate([view, *(overlay(view, one, hottest) for one in shown)]):
            canvas.paste(tile, (GAP + column * step, top + 2 * LINE))
    return canvas


def draw_captions(
    name: str,
    image: Image.Image,
    prompts: Sequence[PromptCaptions],
    fit: Fit = "crop",
    cropped: float = 1.0,
) -> Image.Image:
    """The square that the model sees (`seen`), and beside it each prompt's captions with their cosines."""
    lines = [(name, INK)]
    for prompt in prompts:
        lines.append((f"prompt {prompt.sample + 1}", FAINT))
        lines += [(f"{cosine:.3f}  {text}", INK) for text, cosine in prompt.captions]
        if prompt.words:
            lines.append(("words  " + " ".join(word for word, _ in prompt.words), FAINT))
    width = 2 * GAP + max(int(ImageFont.load_default(12).getlength(text)) for text, _ in lines) + 1
    height = 2 * GAP + max(SIDE, LINE * len(lines))
    canvas = Image.new("RGB", (SIDE + 2 * GAP + width, height), "white")
    canvas.paste(seen(image, SIDE, fit, cropped), (GAP, GAP))
    draw = ImageDraw.Draw(canvas)
    for number, (text, colour) in enumerate(lines):
        write(draw, (SIDE + 3 * GAP, GAP + number * LINE), text, width, colour)
    return canvas


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """One below the other."""
    size = max(one.width for one in pictures), sum(one.height for one in pictures)
    canvas, top = Image.new("RGB", size, "white"), 0
    for one in pictures:
        canvas.paste(one, (0, top))
        top += one.height
    return canvas


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture as PNG."""
    write_bytes(path, encoded_image(picture, optimize=True))


def _scale(heat: Maps, row: int, reading: Reading, temperature: float) -> tuple[float | None, str]:
    """The value of full colour in a row, where its maps share it, and the range of the values in words."""
    low, high, mean = (float(value(heat[:, row])) for value in (np.min, np.max, np.mean))
    if reading == "contribution":
        return max(0.0, float(heat.max())), f"{low:.3g} to {high:.3g} logits, dark up to 0"
    full = f", full colour from {CLEAR}" if high < CLEAR * mean else ""
    if reading == "prompt-to-patch":
        cells = heat.shape[-2] * heat.shape[-1]
        times = f"{low * cells:.2f} to {high * cells:.2f} times uniform (1/{cells}){full}"
        return full_colour(heat[:, row]), f"{times}, at T = {temperature:.3g}"
    return None, f"{low:.3g} to {high:.3g}, at T = {temperature:.3g}, each map up to at least twice its mean"


def write(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, colour: str) -> None:
    """Text cut to a width."""
    font = ImageFont.load_default(12)
    shown = text
    while len(shown) > 1 and draw.textlength(shown, font) > width:
        shown = shown[:-2] + "…"
    draw.text(at, shown, fill=colour, font=font)
