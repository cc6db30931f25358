from benchmarks.cost import ROWS, cost_table
from benchmarks.speed.setups import make_backbone, random_images


def test_the_table_of_costs_stands_beside_the_papers():
    backbone = make_backbone("tiny", "cpu")
    lines = cost_table(backbone, random_images(backbone, 2), classes=3, repeats=1).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == list(ROWS)
    assert [row[2] for row in cells] == ["2,048", "35,360", "8,192", "1,577,984"]
    assert [row[4] for row in cells] == ["645", "37", "583", "541"]
    assert all(float(row[3]) > 0 for row in cells)
    assert cells[0][1] == f"{4 * backbone.text_width:,}"
