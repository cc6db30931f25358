"""The tokenizer that lies beside the weights of a model whose vocabulary is not CLIP's."""

from pathlib import Path
from typing import Any, Literal

from pbprompt.errors import InputError, first_line, needing
from pbprompt.vision.towers.loading.checkpoint_files import HF_TOKENIZER, HF_TOKENIZER_CONFIG, read_json
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.tokenizer import SentenceTokenizer


def read_tokenizer(
    folder: Path, text: TextConfig, vocabulary: Literal["siglip", "metaclip_2"]
) -> SentenceTokenizer:
    """SigLIP's (lower case, no start token) or MetaCLIP 2's (as it is written, between <s> and </s>)."""
    for file in (HF_TOKENIZER, HF_TOKENIZER_CONFIG):
        if not (folder / file).is_file():
            own = " (spiece.model alone is not read)" if (folder / "spiece.model").is_file() else ""
            raise InputError(
                f"{folder}: lacks {file}, without which the model reads no text{own}; fetch it from the hub"
            )
    with needing(f"{folder}: its text needs tokenizers", "siglip"):
        from tokenizers import Tokenizer as Backend
    path, config = folder / HF_TOKENIZER, folder / HF_TOKENIZER_CONFIG
    declared = read_json(config)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare ones
        raise InputError(f"{path}: not readable ({first_line(error)}); fetch it again") from None
    if (most := max(backend.get_vocab().values(), default=0)) >= text.vocab_size:
        raise InputError(
            f"{path}: has token ids up to {most}, but the model has {text.vocab_size} tokens; "
            "give the tokenizer that came with the weights"
        )
    if (side := declared.get("padding_side", "right")) not in ("left", "right"):
        raise InputError(f"{config}: padding_side is {side!r}; left and right are supported")
    kind, siglip = str(declared.get("tokenizer_class", "")), vocabulary == "siglip"
    if not siglip and ("T5" in kind or "Siglip" in kind):
        raise InputError(
            f"{config}: tokenizer_class is {kind!r}; "
            "of MetaCLIP 2 the models with XLM-V's vocabulary are supported"
        )
    return SentenceTokenizer(
        backend,
        vocab_size=text.vocab_size,
        context_length=text.context_length,
        sos=None if siglip else _special(config, backend, declared, "bos_token"),
        eot=_special(config, backend, declared, "eos_token"),
        pad=_special(config, backend, declared, "pad_token"),
        lower=siglip,
        punctuation=not kind.startswith("Siglip") or kind.startswith("Siglip2"),
        pads_left=side == "left",
    )


def _special(config: Path, backend: Any, declared: dict[str, Any], name: str) -> int:
    spelled = declared.get(name)
    spelled = spelled.get("content") if isinstance(spelled, dict) else spelled
    token = backend.token_to_id(spelled) if isinstance(spelled, str) else None
    if token is None:
        raise InputError(
            f"{config}: {name} is {spelled!r}, which {HF_TOKENIZER} does not have; "
            "give the two files that came with the weights"
        )
    return int(token)
