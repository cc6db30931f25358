"""The square of an image that a tower sees; without torch, for processes that only decode."""

from PIL import Image

THIN = 64  # times as long as wide: from here on, what the crop cuts away is not computed


def central_square(image: Image.Image, size: int) -> Image.Image:
    """CLIP's test crop: bicubic resize of the short side to `size`, then the centre."""
    before = image.size
    short, long = min(before), max(before)
    width, height = (int(size * side / short) if side > short else size for side in before)
    left, top = round((width - size) / 2), round((height - size) / 2)
    if long > THIN * short:  # resized as a whole it would take `size`² · long / short pixels
        x, y = before[0] / width, before[1] / height
        box = (left * x, top * y, (left + size) * x, (top + size) * y)
        return image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + size, top + size))
