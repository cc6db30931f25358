"""Rebuild the embedded sample set, `src/pbprompt/vision/images/sample/`, from free emoji packages of npm.

    python scripts/build_sample.py [FOLDER]

Needs `npm` with its `node`, network access to an npm registry, and Pillow. The packages are pinned by
version and by the SHA-256 of their archives; they are unpacked in a temporary folder that is removed at the
end. Of FOLDER (the package's own by default) `images/` and `index.json` are replaced; LICENCES.md is written
by hand and stays.

- A class is one Unicode subgroup, or a few merged, cut to emoji that look like the class's name. Every emoji
  of the table below is checked against Unicode's subgroups (as listed in OpenMoji's data).
- A style is one vendor's drawings, and every class has the same emoji in every style.
- Vector drawings are rendered by resvg at SIZE × SIZE; Fluent's are resampled to it. All lie on white.
- The split goes by emoji, never by image: all four drawings of one emoji are in the same part. The order is
  that of the SHA-256 of the code points; the first TRAIN are for training, then VAL, and the rest is test.

The same packages and the same Pillow give the same bytes.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

SIZE = 128
QUALITY = 88
TRAIN, TEST = 8, 4  # emoji a class: exactly so many for training, at least so many for the test
TEMPLATE = "a drawing of a {}."
DEFAULT_FOLDER = Path(__file__).parents[1] / "src" / "pbprompt" / "vision" / "images" / "sample"

# style: package, version, licence of the drawings, SHA-256 of the archive
STYLES = {
    "google": (
        "@iconify-json/noto",
        "1.2.9",
        "Apache-2.0",
        "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad",
    ),
    "twitter": (
        "@iconify-json/twemoji",
        "1.2.5",
        "CC-BY-4.0",
        "19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7",
    ),
    "openmoji": (
        "openmoji",
        "17.0.0",
        "CC-BY-SA-4.0",
        "55ee7d13485dec86e9f38c1f3a645a13382d33ff97c0cd845ee824b0aef45e68",
    ),
    "fluent": (
        "@lobehub/fluent-emoji-3d",
        "1.1.0",
        "MIT",
        "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
    ),
}
RENDERER = (
    "@resvg/resvg-wasm",
    "2.6.2",
    "ff51acbb5ee0074601b75c3bea9226a18d346752af787f6d2d3adcdd98493d71",
)

# class name: Unicode subgroups, emoji
CLASSES = {
    "bird": ("animal-bird", "🦃 🐔 🐓 🐤 🐥 🐦 🐧 🕊 🦅 🦆 🦢 🦉 🦤 🦩 🦚 🦜"),
    "bug": ("animal-bug", "🐌 🦋 🐛 🐜 🐝 🪲 🐞 🦗 🪳 🕷 🦂 🦟 🪰 🪱"),
    "building": ("place-building place-religious", "🏛 🛖 🏚 🏠 🏡 🏢 🏣 🏤 🏥 🏦 🏨 🏫 🏬 🏯 🏰 ⛪"),
    "clock": ("time", "⌚ ⏰ ⏱ ⏲ 🕰 🕛 🕧 🕐 🕝 🕒 🕟 🕔 🕡 🕖 🕣 🕘"),
    "dessert": ("food-sweet", "🍦 🍧 🍨 🍩 🍪 🎂 🍰 🧁 🥧 🍫 🍬 🍭 🍮 🍯"),
    "drink": ("drink", "🥛 ☕ 🫖 🍵 🍶 🍾 🍷 🍸 🍹 🍺 🍻 🥂 🥃 🥤 🧋 🧃"),
    "electronic device": ("phone computer light-video music", "📱 ☎ 📟 📠 💻 🖥 🖨 ⌨ 🖱 📺 📷 📹 🎥 📽 📻 🎧"),
    "fruit": ("food-fruit", "🍇 🍈 🍉 🍊 🍋 🍌 🍍 🥭 🍎 🍏 🍐 🍑 🍒 🍓 🫐 🥝"),
    "garment": ("clothing sport", "🥼 🦺 👕 👖 🧣 🧤 🧥 🧦 👗 👘 🥻 🩱 🩳 👙 👚 🥋"),
    "hand": (
        "hand-fingers-open hand-fingers-partial hand-single-finger hand-fingers-closed hands",
        "👋 🤚 🖐 ✋ 🖖 👌 🤏 ✌ 🤞 🤘 👈 👆 ☝ 👍 ✊ 👏",
    ),
    "heart": ("heart", "💘 💝 💖 💗 💓 💞 💕 💟 ❣ 💔 ❤ 🧡 💚 💙 💜 🖤"),
    "household item": ("household", "🚪 🪞 🪟 🛏 🛋 🪑 🚽 🪠 🚿 🛁 🧴 🧹 🧺 🧻 🪣 🪥"),
    "landscape": ("place-geographic place-other", "🏔 ⛰ 🌋 🗻 🏕 🏖 🏜 🏝 🏞 🌃 🏙 🌄 🌅 🌆 🌇 🌉"),
    "mammal": ("animal-mammal", "🐒 🦍 🐕 🦊 🐈 🦁 🐅 🐎 🦓 🐄 🐖 🐑 🐘 🐁 🐇 🐻"),
    "meal": ("food-prepared food-asian", "🍔 🍟 🍕 🌭 🥪 🌮 🌯 🥙 🥘 🍲 🥗 🍱 🍛 🍜 🍝 🍣"),
    "moon": ("sky-weather", "🌑 🌒 🌓 🌔 🌕 🌖 🌗 🌘 🌙 🌚 🌛 🌜 🌝"),
    "musical instrument": ("musical-instrument sound", "🎷 🎺 🪗 🎸 🎹 🎻 🪕 🥁 🪘 🪇 🪈 📯 🔔"),
    "office supply": ("writing office", "✏ ✒ 🖋 🖊 🖌 🖍 📝 📋 📌 📎 🖇 📏 📐 ✂ 🗒 🗑"),
    "plant": ("plant-flower plant-other", "💐 🌸 🪷 🌹 🌺 🌻 🌼 🌷 🌱 🪴 🌲 🌳 🌴 🌵 🌾 🌿"),
    "road vehicle": ("transport-ground", "🚌 🚎 🚐 🚑 🚒 🚓 🚕 🚗 🚙 🛻 🚚 🚛 🚜 🏎 🏍 🛵"),
    "sad face": ("face-concerned face-sleepy", "😕 😟 🙁 ☹ 🥺 😦 😧 😰 😥 😢 😭 😖 😣 😞 😓 😔"),
    "sea animal": ("animal-marine", "🐳 🐋 🐬 🦭 🐟 🐠 🐡 🦈 🐙 🐚 🪼 🦀 🦞 🦐 🦑 🦪"),
    "smiling face": (
        "face-smiling face-affection face-hand face-glasses",
        "😀 😃 😄 😁 😆 😅 🤣 😂 🙂 😉 😊 😇 🥰 😍 🤗 😎",
    ),
    "sports item": ("sport", "⚽ ⚾ 🏀 🏐 🏈 🏉 🎾 🎳 🏏 🏑 🏒 🥍 🏓 🏸 🥊 🎿"),
    "tool": ("tool", "🔨 🪓 ⛏ ⚒ 🛠 🪚 🔧 🪛 🔩 ⚙ 🗜 🪝 🧰 🧲 🪜"),
    "train": ("transport-ground transport-air", "🚂 🚃 🚄 🚅 🚆 🚇 🚈 🚉 🚊 🚝 🚞 🚋 🚟"),
    "vegetable": ("food-vegetable", "🥑 🍆 🥔 🥕 🌽 🌶 🫑 🥒 🥬 🥦 🧄 🧅 🫘 🫚 🫛"),
    "weather symbol": ("sky-weather", "☀ ☁ ⛅ ⛈ 🌤 🌥 🌦 🌧 🌨 🌩 🌪 🌫 🌈 ☔ ⚡ ❄"),
}

# Node: render every SVG of a folder to a PNG beside it.
RENDER_JS = """
const [resvg, folder, size] = process.argv.slice(1);
const fs = require("fs"), path = require("path");
const { initWasm, Resvg } = require(resvg);
initWasm(fs.readFileSync(path.join(resvg, "index_bg.wasm"))).then(() => {
  for (const name of fs.readdirSync(folder)) {
    const svg = fs.readFileSync(path.join(folder, name), "utf8");
    const options = { fitTo: { mode: "width", value: Number(size) }, background: "white" };
    const png = new Resvg(svg, options).render().asPng();
    fs.writeFileSync(path.join(folder, name.replace(".svg", ".png")), png);
  }
});
"""


def code_points(emoji: str) -> str:
    """`1f577` for a spider, without the variation selector, which only some packages write in their names."""
    return without_selector("-".join(f"{ord(character):04x}" for character in emoji))


def without_selector(key: str) -> str:
    return "-".join(part for part in key.lower().split("-") if part != "fe0f")


def fetch(package: str, version: str, sha256: str, work: Path) -> Path:
    """Download a package and unpack it; its folder."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(work), f"{package}@{version}"]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    archive = work / name
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{package}@{version}: archive has SHA-256 {found}, not {sha256}")
    folder = work / archive.stem
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "package"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def iconify_drawings(package: Path) -> dict[str, str]:
    """SVG text by code points, from an icon set in Iconify's format."""
    icon_set = read_json(package / "icons.json")
    drawings = {}
    for key, name in read_json(package / "chars.json").items():
        while name in icon_set.get("aliases", {}):
            name = icon_set["aliases"][name]["parent"]
        icon = icon_set["icons"][name]
        width, height = (icon.get(side, icon_set.get(side, 16)) for side in ("width", "height"))
        namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
        drawings[without_selector(key)] = f'<svg {namespaces} viewBox="{box}">{icon["body"]}</svg>'
    return drawings


def render(drawings: dict[str, str], resvg: Path, work: Path) -> dict[str, Image.Image]:
    """The pictures of SVG drawings, SIZE pixels wide."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for key, svg in drawings.items():
            Path(folder, f"{key}.svg").write_text(svg, encoding="utf-8")
        subprocess.run(["node", "-e", RENDER_JS, str(resvg), folder, str(SIZE)], check=True)
        return {key: on_white(Image.open(Path(folder, f"{key}.png"))) for key in drawings}


def on_white(picture: Image.Image) -> Image.Image:
    """A SIZE × SIZE RGB picture: what is transparent becomes white, what is not square is centred."""
    picture = picture.convert("RGBA")
    side = max(picture.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square.convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def chosen_emoji(unicode_data: dict[str, Any]) -> dict[str, list[str]]:
    """Code points by class, in Unicode's order, each checked to be in one of the class's subgroups."""
    subgroup = {key: entry["subgroups"] for key, entry in unicode_data.items()}
    place = {key: position for position, key in enumerate(unicode_data)}
    chosen = {}
    for name, (subgroups, emoji) in CLASSES.items():
        keys = sorted(map(code_points, emoji.split()), key=place.__getitem__)
        wrong = [f"{key} ({subgroup[key]})" for key in keys if subgroup[key] not in subgroups.split()]
        if wrong or len(set(keys)) != len(keys):
            raise SystemExit(f"class {name!r}: not in its subgroups, or listed twice: {wrong or keys}")
        chosen[name] = keys
    return chosen


def split_of(keys: list[str]) -> dict[str, str]:
    """train, val or test for each emoji of a class."""
    shuffled = sorted(keys, key=lambda key: hashlib.sha256(key.encode()).hexdigest())
    val = 2 if len(keys) >= TRAIN + TEST + 4 else 1
    if len(keys) < TRAIN + val + TEST:
        raise SystemExit(f"a class needs {TRAIN + val + TEST} emoji at least: {keys}")
    parts = ["train"] * TRAIN + ["val"] * val + ["test"] * (len(keys) - TRAIN - val)
    return dict(zip(shuffled, parts, strict=True))


def draw(wanted: set[str], packages: dict[str, Path], work: Path) -> dict[str, dict[str, Image.Image]]:
    """The pictures of the wanted emoji, by style and code points."""
    vectors = {style: iconify_drawings(packages[style]) for style in ("google", "twitter")}
    vectors["openmoji"] = {
        without_selector(path.stem): path.read_text(encoding="utf-8")
        for path in (packages["openmoji"] / "color/svg").glob("*.svg")
    }
    resvg = fetch(*RENDERER, work)
    pictures = {
        style: render({key: drawings[key] for key in wanted}, resvg, work)
        for style, drawings in vectors.items()
    }
    fluent = {without_selector(path.stem): path for path in (packages["fluent"] / "assets").glob("*.webp")}
    pictures["fluent"] = {key: on_white(Image.open(fluent[key])) for key in wanted}
    return pictures


def build(folder: Path, work: Path) -> None:
    packages = {
        style: fetch(package, version, sha256, work)
        for style, (package, version, _, sha256) in STYLES.items()
    }
    unicode_list = read_json(packages["openmoji"] / "data/openmoji.json")
    unicode_data = {without_selector(entry["hexcode"]): entry for entry in unicode_list}
    chosen = chosen_emoji(unicode_data)
    splits = {key: part for keys in chosen.values() for key, part in split_of(keys).items()}
    pictures = draw(set(splits), packages, work)

    unfinished = folder / "images.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    items = []
    for style in STYLES:
        for label, (name, keys) in enumerate(chosen.items()):
            place = Path(style, name.replace(" ", "-"))
            (unfinished / place).mkdir(parents=True)
            for key in keys:
                file = place / f"{key}.webp"
                pictures[style][key].save(unfinished / file, quality=QUALITY, method=6)
                item = {"file": file.as_posix(), "label": label, "style": style, "split": splits[key]}
                items.append(item | {"emoji": key, "name": unicode_data[key]["annotation"]})
    shutil.rmtree(folder / "images", ignore_errors=True)
    unfinished.rename(folder / "images")
    write_index(folder / "index.json", list(chosen), items)


def write_index(path: Path, classes: list[str], items: list[dict[str, Any]]) -> None:
    """The index, one item a line, so that a change shows as one in a diff."""
    head = {
        "name": "sample",
        "template": TEMPLATE,
        "size": SIZE,
        "classes": classes,
        "styles": list(STYLES),
        "packages": {
            style: {"package": package, "version": version, "licence": licence}
            for style, (package, version, licence, _) in STYLES.items()
        },
    }
    lines = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in items)
    opening = json.dumps(head, ensure_ascii=False, indent=1).removesuffix("\n}")
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(f'{opening},\n "items": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        build(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER, Path(temporary))
