"""How far an encoder may run ahead of whoever takes its features."""

from pbprompt.clip.backbone import Backbone
from pbprompt.data.decoding import Decoder
from pbprompt.features import encode


def most_batches_ahead(backbone: Backbone, decoder: Decoder) -> int:
    """How many batches are taken from the source at most before the features of the first are handed on."""
    return decoder.ahead + encode._towers(backbone) + 3
