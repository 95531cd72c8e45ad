#!/usr/bin/env python3
"""Make the English aligner that is in the package, data/english_aligner: ten minutes on one core.

    python recipes/minilibri/english_aligner.py ../shared/corpora/minilibri exp/english

The second argument is a directory for the aligner as it is trained; if it is there, it is only made smaller: Gaussians
in half precision, and pronunciations of new words by 4-grams of letters with phones (6.0 % of the phones of held-out
words are wrong) in place of 6-grams (5.9 %), which need five times the space.
"""

import shutil
import sys
from pathlib import Path

import numpy as np

from speech3 import Aligner
from speech3.hmm.alignment.oov import by_lexicon
from speech3.io import load_tensors, save_tensors
from speech3.language import G2P, g2p

OUT = Path(__file__).parents[2] / "data" / "english_aligner"
COPIED = ("aligner.json", "features.yaml", "hmm.json", "lexiconp.txt", "tree.safetensors")
ORDER = 4


def main(corpus: Path, trained: Path) -> None:
    if not (trained / "model.safetensors").exists():
        Aligner.train(corpus / "train", lexicon=corpus / "lang" / "lexicon.txt", out=trained)
    for name in COPIED:
        shutil.copyfile(trained / name, OUT / name)
    gmm, about = load_tensors(trained / "model.safetensors", "gmm")
    half = {name: each if each.dtype.kind == "i" else each.astype(np.float16) for name, each in gmm.items()}
    save_tensors(OUT / "model.safetensors", half, about)
    # What the trained aligner learns of its lexicon by itself, for the mark of the lexicon and the words in it.
    hmm = Aligner.load(trained).recognizer.hmm
    by_lexicon(hmm, ["zyzzyva"], trained / G2P)
    whole = g2p.load(trained / G2P)
    small = g2p.train(g2p.read_table(trained / "lexicon.txt"), "lexicon.txt", ORDER)
    small.save(OUT / G2P)
    tensors, about = load_tensors(OUT / G2P, g2p.KIND)
    tensors |= {"word": tensors["word"].astype(np.int16)}
    tensors |= {name: tensors[name].astype(np.float16) for name in ("prob", "backoff")}
    save_tensors(OUT / G2P, tensors, {**about, "wrong": whole.wrong, "lexicon": whole.lexicon})
    size = sum(path.stat().st_size for path in OUT.iterdir())
    print(f"{OUT}: {size / 1e6:.2f} MB, {whole.words:,} words")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
