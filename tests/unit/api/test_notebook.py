"""The notebook of the documentation, run by a kernel as a reader runs it."""

import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> dict[str, list[Any]]:
    """Outputs of each cell with code, by its code, after the whole notebook has run."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "reports" / "sample", folder / "reports" / "sample")
    notebook = nbformat.read(FILE, as_version=4)
    nbformat.validate(notebook)
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", resources=where).execute()
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def output(cells: dict[str, list[Any]], code: str) -> Any:
    """The only output of the only cell with *code* in it."""
    ((only,),) = [outputs for source, outputs in cells.items() if code in source]
    return only


def test_the_notebook_is_stored_without_outputs():
    cells = [cell for cell in nbformat.read(FILE, as_version=4).cells if cell.cell_type == "code"]
    assert len(cells) > 5
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("db.load", ["zero · run a91148a7 · finished", "Train with ddp on 2 devices", "<td>19,700 ±6%</td>"]),
        ("run.pick", ["Train with zero2 on 2 devices", "zero2", "<td>67.4 MiB</td>"]),
        ("run.table", ["tokens_per_s", "ddp/ws2/mb8/fp32"]),
        pytest.param("first.compare", ["Two runs: ", "tokens/s"], marks=pytest.mark.train),
    ],
)
def test_objects_show_themselves_as_tables(cells, code, shown):
    html = output(cells, code)["data"]["text/html"]
    assert "<table" in html
    assert [text for text in shown if text not in html] == []


def test_a_chart_is_a_figure_of_plotly(cells):
    figure = output(cells, "run.figure")["data"]["application/vnd.plotly.v1+json"]
    assert figure["data"]
    assert figure["layout"]["title"]["text"]


@pytest.mark.train
def test_progress_is_one_output_that_was_updated(cells):
    progress = output(cells, "first = db.run")
    assert progress["output_type"] == "display_data"
    *trials, last = progress["data"]["text/plain"].splitlines()
    assert last == "4/4"
    # the launcher that invents numbers marks each trial as noisy, which is told
    assert len(trials) == 4
    assert all("measured, noisy" in line for line in trials)


def test_a_mistake_is_one_sentence(cells):
    said = output(cells, 'device="gpu"')["text"]
    assert said == "run(device=\"gpu\"): device = 'gpu': did you mean 'cpu'? Allowed: auto, cpu, cuda\n"
