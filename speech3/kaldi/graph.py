"""Import of Kaldi's decoding graph (utils/mkgraph.sh): transition-ids become pdfs, everything else is unchanged.

Its arcs keep their transition probabilities, with Kaldi's self-loop scale.
"""

from pathlib import Path
from typing import Any

from speech3.errors import Speech3Error
from speech3.graph.decoding_graph import check_graph
from speech3.io.atomic import write_json, write_text
from speech3.io.fst import Fst, from_kaldifst, read_fst, write_fst
from speech3.kaldi.lang import read_symbol_table
from speech3.kaldi.transitions import TransitionModel

_REMEDY = "give the graph directory that mkgraph.sh made for this model"


def import_graph(graph: Path, model: TransitionModel, mdl: Path, out: Path) -> dict[str, Any]:
    """Write ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return the contents of the last.

    Parameters
    ----------
    graph
        Directory with HCLG.fst (of type const or vector), words.txt and, usually, num_pdfs.
    model, mdl
        The transition model that the graph was made from, and its file, for messages.

    Raises
    ------
    Speech3Error
        A file is missing or damaged, or the graph was made from another model.
    """
    stated = graph / "num_pdfs"
    if (
        stated.exists()
        and (text := stated.read_text(encoding="utf-8").strip()).isdigit()
        and int(text) != model.num_pdfs
    ):
        raise Speech3Error(f"{stated}: {text} pdfs, but {mdl} has {model.num_pdfs}; {_REMEDY}")
    fst = _read(graph / "HCLG.fst")
    highest = int(fst.arcs_A["ilabel"].max()) if len(fst.arcs_A) else 0
    if highest >= len(model.pdf_K):
        raise Speech3Error(
            f"{graph / 'HCLG.fst'}: transition-ids up to {highest}, but {mdl} has {len(model.pdf_K) - 1}; {_REMEDY}"
        )
    arcs_A = fst.arcs_A.copy()
    arcs_A["ilabel"] = model.pdf_K[fst.arcs_A["ilabel"]] + 1
    words = read_symbol_table(graph / "words.txt", _REMEDY)
    check_graph(fst := Fst(fst.start, fst.final_S, fst.source_A, arcs_A), model.num_pdfs, len(words), graph)
    about = {
        "num_pdfs": model.num_pdfs, "states": len(fst.final_S), "arcs": len(arcs_A), "words": len(words),
        "lm": str(graph), "dropped": [],
    }  # fmt: skip
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(words)))
    write_fst(fst, out / "HCLG.fst")
    write_json(out / "graph.json", about)
    return about


def _read(path: Path) -> Fst:
    import kaldifst

    try:
        with path.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise Speech3Error(f"{path}: {error.strerror}; {_REMEDY}") from error
    if head[8:13] == b"const":
        return read_fst(path)
    fst = kaldifst.StdVectorFst.read(str(path)) if head[8:14] == b"vector" else None
    if fst is None:
        raise Speech3Error(f"{path}: not an OpenFst file of type const or vector, or cut short; {_REMEDY}")
    return from_kaldifst(fst)
