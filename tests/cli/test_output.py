import pytest

from pbprompt.cli.output import print_json
from pbprompt.errors import InputError


def test_json_says_no_nan(capsys):
    print_json({"é": 1.5})
    assert capsys.readouterr().out == '{"é": 1.5}\n'
    with pytest.raises(InputError, match="NaN or infinite"):
        print_json({"nll": float("nan")})
    assert not capsys.readouterr().out
