from pbprompt.report.cost import ROWS, computation_cost


def test_the_costs_stand_beside_the_papers(tiny_vit):
    rows = computation_cost(tiny_vit, classes=3, images=2, repeats=1)
    assert [row.method for row in rows] == list(ROWS)
    assert [row.published_parameters for row in rows] == [2048, 35360, 8192, 1577984]
    assert [row.published_images_per_second for row in rows] == [645, 37, 583, 541]
    assert all(row.images_per_second > 0 for row in rows)
    assert rows[0].parameters == 4 * tiny_vit.text_width
