"""The families of models that can be loaded: for `pbprompt backbones`, `pbprompt doctor` and the docs."""

from dataclasses import dataclass
from importlib.util import find_spec

from pbprompt.clip.loading.hub import EMBEDDED, OPENAI_MODELS


@dataclass(frozen=True)
class Family:
    """A family; `licence` is an unchecked reminder, `parameters` are counted from the published sizes of the
    ids, `needs` is (extra, module) where it takes an extra."""

    name: str
    ids: tuple[str, ...]
    licence: str
    pixels: str
    parameters: str
    needs: tuple[str, str] | None = None

    @property
    def missing(self) -> str | None:
        """The extra that is not installed here, if one is needed."""
        if self.needs is None or find_spec(self.needs[1]) is not None:
            return None
        return self.needs[0]


TOKENIZERS = ("siglip", "tokenizers")
TIMM = ("timm", "timm")

FAMILIES = (
    Family("lite", EMBEDDED, "with the package: THIRD_PARTY_NOTICES.md", "224", "15M to 19M"),
    Family("OpenAI CLIP", tuple(OPENAI_MODELS), "MIT", "224 to 448", "102M to 623M"),
    Family(
        "LAION",
        (
            "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
            "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
            "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
            "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        ),
        "MIT",
        "224",
        "150M to 986M",
    ),
    Family(
        "DataComp",
        (
            "laion/CLIP-ViT-B-32-DataComp.XL-s13B-b90K",
            "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K",
            "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K",
        ),
        "MIT",
        "224",
        "150M to 428M",
    ),
    Family(
        "DFN",
        ("apple/DFN2B-CLIP-ViT-B-16", "apple/DFN2B-CLIP-ViT-L-14"),
        "Apple's own",
        "224",
        "150M to 428M",
    ),
    Family(
        "MetaCLIP 1",
        (
            "facebook/metaclip-b32-400m",
            "facebook/metaclip-b16-fullcc2.5b",
            "facebook/metaclip-l14-fullcc2.5b",
        ),
        "CC BY-NC 4.0",
        "224",
        "150M to 428M",
    ),
    Family(
        "MetaCLIP 2",
        (
            "facebook/metaclip-2-worldwide-s16",
            "facebook/metaclip-2-worldwide-b16",
            "facebook/metaclip-2-worldwide-l14",
            "facebook/metaclip-2-worldwide-huge-quickgelu",
            "facebook/metaclip-2-worldwide-giant-378",
        ),
        "CC BY-NC 4.0",
        "224 to 384",
        "390M to 3.6B",
        TOKENIZERS,
    ),
    Family(
        "LongCLIP", ("a file: longclip-B.pt", "a file: longclip-L.pt"), "Apache 2.0", "224", "150M to 428M"
    ),
    Family(
        "EVA-02-CLIP",
        (
            "timm/eva02_base_patch16_clip_224.merged2b_s8b_b131k",
            "timm/eva02_large_patch14_clip_224.merged2b_s4b_b131k",
            "timm/eva02_large_patch14_clip_336.merged2b_s6b_b61k",
        ),
        "MIT",
        "224 to 336",
        "150M to 428M",
    ),
    Family(
        "PE-Core",
        (
            "facebook/PE-Core-T16-384",
            "facebook/PE-Core-S16-384",
            "facebook/PE-Core-B16-224",
            "facebook/PE-Core-L14-336",
            "facebook/PE-Core-G14-448",
            "timm/PE-Core-B-16",
        ),
        "Apache 2.0",
        "224 to 448",
        "70M to 2.4B",
    ),
    Family(
        "SigLIP",
        (
            "google/siglip-base-patch16-224",
            "google/siglip-base-patch16-384",
            "google/siglip-large-patch16-256",
            "google/siglip-so400m-patch14-384",
        ),
        "Apache 2.0",
        "224 to 512",
        "203M to 878M",
        TOKENIZERS,
    ),
    Family(
        "SigLIP 2 (fixed resolution)",
        (
            "google/siglip2-base-patch16-224",
            "google/siglip2-base-patch16-384",
            "google/siglip2-large-patch16-256",
            "google/siglip2-so400m-patch14-384",
        ),
        "Apache 2.0",
        "224 to 512",
        "375M to 1.1B",
        TOKENIZERS,
    ),
    Family(
        "MobileCLIP",
        (
            "apple/MobileCLIP-S1-OpenCLIP",
            "apple/MobileCLIP-S2-OpenCLIP",
            "apple/MobileCLIP-B-OpenCLIP",
            "timm/MobileCLIP2-S0-OpenCLIP",
            "timm/MobileCLIP2-S2-OpenCLIP",
            "timm/MobileCLIP2-S4-OpenCLIP",
        ),
        "Apple's own",
        "224 to 256",
        "75M to 445M",
        TIMM,
    ),
    Family(
        "DINOv2 (images only)",
        (
            "facebook/dinov2-small",
            "facebook/dinov2-base",
            "facebook/dinov2-large",
            "facebook/dinov2-with-registers-base",
        ),
        "Apache 2.0",
        "224",
        "22M to 304M",
    ),
    Family(
        "DINOv3 ViT (images only)",
        (
            "facebook/dinov3-vits16-pretrain-lvd1689m",
            "facebook/dinov3-vitb16-pretrain-lvd1689m",
            "facebook/dinov3-vitl16-pretrain-lvd1689m",
        ),
        "DINOv3's own, accepted on the hub before the download",
        "224",
        "22M to 303M",
    ),
    Family(
        "timm (images only)",
        (
            "timm/vit_base_patch14_dinov2.lvd142m",
            "timm/vit_base_patch16_dinov3.lvd1689m",
            "timm/convnext_tiny.fb_in22k",
        ),
        "each model's own",
        "224 to 518",
        "any number of",
        TIMM,
    ),
)
