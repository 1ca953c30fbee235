"""The README's Python runs as it stands there (on fewer rows and epochs), and its map names what there is."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_ten_lines_run(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    smaller = block.replace("10_000", "1000").replace("8000", "800").replace("epochs=20", "epochs=2, restarts=1")
    names = {}
    exec(smaller.replace("inducing=150", "inducing=20"), names)
    assert "tensor" in capsys.readouterr().out
    assert names["mixture"].num_rows == 200
    assert torch.all(names["lower"] < names["upper"])


def test_every_file_the_readme_links_to_is_there():
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / link).exists(), link


def test_every_preset_is_in_the_table():
    from dspp import PRESETS

    for name in PRESETS:
        assert f"| `{name}` |" in TEXT, name
