from pbprompt.research.report import cost


def test_the_costs_stand_beside_the_papers(tiny_vit, monkeypatch):
    monkeypatch.setattr(cost, "random_backbone", lambda config: tiny_vit)
    monkeypatch.setattr(cost, "CLASSES", 3)
    monkeypatch.setattr(cost, "IMAGES", {"cpu": 2})
    rows = cost.computation_cost()
    assert [row.method for row in rows] == list(cost.ROWS)
    assert [row.published_parameters for row in rows] == [2048, 35360, 8192, 1577984]
    assert [row.published_images_per_second for row in rows] == [645, 37, 583, 541]
    assert all(row.images_per_second > 0 for row in rows)
    assert rows[0].parameters == 4 * tiny_vit.text_width
