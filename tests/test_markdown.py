from pbprompt.markdown import table


def test_a_table_and_its_rule():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert table(["a", "b", "c"], [], figures=True).splitlines()[1] == "| --- | ---: | ---: |"


def test_bars_stay_in_their_cells():
    assert table(["a|b"], [["c\\|d"]]).splitlines() == ["| a\\|b |", "| --- |", "| c\\|d |"]
