"""Import Kaldi's alignment, lexicon and graph as a model directory without an acoustic model, to train one from."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm, PdfsOnly
from speech3.io.ark import write_ark
from speech3.io.atomic import explained_disk_errors
from speech3.kaldi.alignment import open_alignment
from speech3.kaldi.graph import import_graph


@dataclass(frozen=True)
class Imported:
    """Numbers of utterances and frames, the imported outputs, and the graph's number of words (None: no graph)."""

    utterances: int
    frames: int
    outputs: Hmm | PdfsOnly
    words: int | None


def import_kaldi(alignment: Path, out: Path, lang: Path | None = None, graph: Path | None = None) -> Imported:
    """Make the model directory `out` with ``ali.ark`` (pdfs) and ``hmm.json``.

    With `lang` and phones of three consecutive states, also import the lexicon and the tree; with `graph`, also
    ``graph/``. An earlier import in `out` is replaced once everything has been read and found consistent.

    Raises
    ------
    Speech3Error
        A file is missing or damaged, or two files belong to different models; the message names them.
    """
    kaldi = open_alignment(alignment)
    with explained_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
            staged = Path(scratch)
            mdl = alignment / "final.mdl"
            about = import_graph(graph, kaldi.model, mdl, staged / "graph") if graph else None
            utterances = write_ark(staged / "ali.ark", kaldi.senones())
            if not utterances:
                raise Speech3Error(f"{alignment}: its ali.*.gz contain no utterance; align again")
            outputs = kaldi.outputs(lang)
            outputs.save(staged)
            _publish(staged, out)
    return Imported(utterances, int(kaldi.seen_K.sum()), outputs, about["words"] if about else None)


def _publish(staged: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    for name in ("hmm.json", "tree.safetensors", "lexiconp.txt", "lexiconp_silprob.txt", "ali.ark"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "graph", ignore_errors=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == "hmm.json"):  # last: if it exists, the rest does
        path.replace(out / path.name)
