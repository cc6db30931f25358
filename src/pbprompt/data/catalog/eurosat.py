"""EuroSAT: 10 kinds of land use seen by satellite."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, from_split

_NAMES = {
    "AnnualCrop": "Annual Crop Land",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "SeaLake": "Sea or Lake",
}

BENCHMARK = Benchmark(
    name="eurosat",
    title="EuroSAT",
    folder="eurosat",
    marker="split_zhou_EuroSAT.json",
    classes=10,
    counts=(13_500, 5_400, 8_100),
    licence="MIT",
    source=f"https://github.com/phelber/EuroSAT (the RGB images), the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_EuroSAT.json", "2750", lambda name: _NAMES.get(name, name)),
    template="a centered satellite photo of {}.",
)
