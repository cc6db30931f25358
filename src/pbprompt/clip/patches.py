"""How many patches a square image is cut into."""


class SquarePatches:
    """A tower's config whose image is cut into square patches; what does not fill a patch is left out."""

    image_size: int
    patch_size: int

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        side = self.image_size // self.patch_size
        return side, side
