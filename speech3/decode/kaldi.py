"""Import Kaldi's alignment, lexicon and graph as a model directory without an acoustic model, to train one from.

Transition-ids of the graph (utils/mkgraph.sh) become pdfs; its arcs keep their transition probabilities, with Kaldi's
self-loop scale.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speech3.decode.graph import check_graph
from speech3.errors import DataError, FormatError, MismatchError, OccupiedError, listed
from speech3.hmm import Hmm, PdfsOnly, TransitionModel, open_alignment, read_symbol_table
from speech3.io import GRAPH_FILE, HCLG_FILE, HMM_FILE, TREE_FILE, Fst, from_kaldifst, read_fst, write_ark, write_fst
from speech3.runtime import check_output, explained_disk_errors, write_json, write_text

_REMEDY = "pass the graph directory that mkgraph.sh made for this model"
_WRITTEN = {HMM_FILE, TREE_FILE, "lexiconp.txt", "lexiconp_silprob.txt", "ali.ark", "graph"}


def import_graph(graph: Path, model: TransitionModel, mdl: Path, out: Path) -> dict[str, Any]:
    """Write ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return the contents of the last.

    Kaldi's graph is a directory with HCLG.fst (of type const or vector), words.txt and, usually, num_pdfs. `mdl` is the
    file of the transition model that it was made from; a graph of another model is refused.
    """
    stated = graph / "num_pdfs"
    if (
        stated.exists()
        and (text := stated.read_text(encoding="utf-8").strip()).isdigit()
        and int(text) != model.num_pdfs
    ):
        raise MismatchError(f"{stated}: {text} pdfs, but {mdl} has {model.num_pdfs}; {_REMEDY}")
    fst = _read(graph / HCLG_FILE)
    lowest, highest = (int(f(fst.arcs_A["ilabel"])) if len(fst.arcs_A) else 0 for f in (np.min, np.max))
    if lowest < 0 or highest >= len(model.pdf_K):
        found = f"up to {highest}" if lowest >= 0 else f"below 0 ({lowest})"
        raise MismatchError(
            f"{graph / 'HCLG.fst'}: transition-ids {found}, but {mdl} has {len(model.pdf_K) - 1}; {_REMEDY}"
        )
    arcs_A = fst.arcs_A.copy()
    arcs_A["ilabel"] = model.pdf_K[fst.arcs_A["ilabel"]] + 1
    words = read_symbol_table(graph / "words.txt", _REMEDY)
    check_graph(fst := Fst(fst.start, fst.final_S, fst.source_A, arcs_A), model.num_pdfs, len(words), graph)
    sizes = {"num_pdfs": model.num_pdfs, "states": len(fst.final_S), "arcs": len(arcs_A), "words": len(words)}
    about = {**sizes, "lm": str(graph), "dropped": []}
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(words)))
    write_fst(fst, out / HCLG_FILE)
    write_json(out / GRAPH_FILE, about)
    return about


def _read(path: Path) -> Fst:
    import kaldifst

    try:
        with path.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}; {_REMEDY}") from error
    if head[8:13] == b"const":
        return read_fst(path)
    fst = kaldifst.StdVectorFst.read(str(path)) if head[8:14] == b"vector" else None
    if fst is None:
        raise FormatError(f"{path}: not an OpenFst file of type const or vector, or cut short; {_REMEDY}")
    return from_kaldifst(fst)


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

    Raises `Speech3Error`: a file is missing or damaged, or two files belong to different models; the message names
    them. `out` has files that no import wrote, such as Kaldi's own model and graph.
    """
    check_output(out, [alignment, lang, graph], sorted(_WRITTEN), marks=[HMM_FILE, "ali.ark"])
    kaldi = open_alignment(alignment)
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if others := sorted(name for name in there - _WRITTEN if not name.startswith(".")):
        raise OccupiedError(f"{out}: is not an earlier import: it has {listed(others, 3)}; choose another OUT")
    with explained_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
            staged = Path(scratch)
            mdl = alignment / "final.mdl"
            about = import_graph(graph, kaldi.model, mdl, staged / "graph") if graph else None
            utterances = write_ark(staged / "ali.ark", kaldi.senones())
            if not utterances:
                raise DataError(f"{alignment}: its ali.*.gz contain no utterance; align again")
            outputs = kaldi.outputs(lang)
            outputs.save(staged)
            _publish(staged, out)
    return Imported(utterances, int(kaldi.seen_K.sum()), outputs, about["words"] if about else None)


def _publish(staged: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    for name in _WRITTEN - {"graph"}:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "graph", ignore_errors=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == HMM_FILE):  # last: if it exists, the rest does
        path.replace(out / path.name)
