"""How far an encoder may run ahead of whoever takes its features."""

from pbprompt.vision.features import encode
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.towers.backbone import Backbone


def most_batches_ahead(backbone: Backbone, decoder: Decoder) -> int:
    """How many batches are taken from the source at most before the features of the first are handed on."""
    return decoder.ahead + encode._towers(backbone) + 3
