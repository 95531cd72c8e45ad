"""Outputs that would replace an input, or files of another kind, are refused by every verb before anything is written.

What an earlier run of the same command wrote may be replaced.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
from small_frames import config_with_frames

from speech3.data import validation
from speech3.errors import OccupiedError

LEXICON = "A a\nAB a b\nBB b b\n"
OTHER = {"other/utt2spk": "x x\n", "other/wav.scp": "x x.wav\n", "other/text": "x MINE\n"}  # a data directory
LATTICES = {"dec/lattice.json": "{}", "dec/hyp.txt": "ab AB\n"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and models, which must not be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "decode"))
        import whistles
    here = tmp_path_factory.mktemp("world")
    whistles.save_gmm(here)
    shutil.copytree(here / "model", here / "net")
    whistles.gaussians_to_network(here / "net")
    for name in ("sounds", "data"):
        (here / name).mkdir()
    for name, (_, segments) in whistles.SAID.items():
        soundfile.write(here / "sounds" / f"{name}.wav", whistles.whistled(*segments), whistles.RATE_HZ)
    said = {name: " ".join(words) for name, (words, _) in whistles.SAID.items()}
    (here / "data" / "wav.scp").write_text("".join(f"{name} sounds/{name}.wav\n" for name in said))
    (here / "data" / "utt2spk").write_text("".join(f"{name} {name}\n" for name in said))
    (here / "data" / "text").write_text("".join(f"{name} {text}\n" for name, text in said.items()))
    (here / "more").mkdir()
    (here / "more" / "wav.scp").write_text("c sounds/ab.wav\n")
    (here / "more" / "utt2spk").write_text("c c\n")
    (here / "text.txt").write_text("A AB\nBB A\nAB BB\n" * 3)
    (here / "words.txt").write_text("A\nAB\nBB\n")
    (here / "lexicon.txt").write_text(LEXICON)
    (here / "notes.txt").write_text("what nobody has a copy of\n")
    (here / "link").symlink_to("data")
    config_with_frames(here, {"max_epochs": 1})
    return here


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the data and models, which becomes the working directory."""
    shutil.copytree(world, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    shutil.copy("model/graph/lm.arpa.gz", "lm.arpa.gz")
    text = Path("my.yaml").read_text().replace(str(world), str(tmp_path / "here"))
    Path("my.yaml").write_text(text)
    return tmp_path / "here"


def contents(here: Path) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for path in sorted(here.rglob("*")):
        name = str(path.relative_to(here))
        found[name] = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
    return found


Row = tuple[str, str, dict[str, str]]
ROWS: tuple[Row, ...] = (
    # The output is an input, by any spelling.
    ("fix data data", "data: is one of the inputs", {}),
    ("fix data link", "link: is one of the inputs", {}),
    ("subset data sounds/../data --first 1", "data: is one of the inputs", {}),
    ("subset link data --first 1", "data: is one of the inputs", {}),
    ("combine data data", "data: is one of the inputs.*name the output first", {}),
    ("split data . data=0.5 rest=0.5 --by utterance", "data: is one of the inputs", {}),
    ("speakers data --model model --out ./data", "data: is one of the inputs", {}),
    ("augment data data --augment noisy", "data: is one of the inputs", {}),
    ("stats data --lexicon exp/oov.txt --out exp", "exp/oov.txt: is one of the inputs", {"exp/oov.txt": LEXICON}),
    (
        "extract data feats --features given",
        "feats/feats.ark: is one of the inputs",
        {"data/feats.scp": "ab feats/feats.ark:3\n", "feats/feats.ark": "x", "feats/features.yaml": "kind: given\n"},
    ),
    (
        "extract data exp --features exp/features.yaml",
        "exp/features.yaml: is one of the inputs",
        {"exp/features.yaml": "kind: fbank\n"},
    ),
    ("lm train text.txt --out text.txt", "--out text.txt: is one of the inputs", {}),
    ("lm train text.txt --vocabulary words.txt --out words.txt", "--out words.txt: is one of the inputs", {}),
    ("lm prune lm.arpa.gz ./lm.arpa.gz --threshold 0", "lm.arpa.gz: is one of the inputs", {}),
    (
        "lm interpolate lm.arpa.gz lm.arpa.gz --tune text.txt --out text.txt",
        "--out text.txt: is one of the inputs",
        {},
    ),
    ("g2p train lexicon.txt lexicon.txt", "lexicon.txt: is one of the inputs", {}),
    ("inspect sounds/ab.wav --out sounds/ab.wav", "--out sounds/ab.wav: is one of the inputs", {}),
    ("decode model data data", "data: is one of the inputs", {}),
    (
        "decode model data exp --transforms exp/trans.ark",
        "exp/trans.ark: is one of the inputs",
        {"exp/trans.ark": "x", "exp/hyp.txt": "ab A\n"},
    ),
    ("rescore dec lm.arpa.gz dec", "dec: is one of the inputs", LATTICES),
    (
        "rescore dec lm.arpa.gz exp --tune exp/hyp.txt",
        "exp/hyp.txt: is one of the inputs",
        {**LATTICES, "exp/hyp.txt": "ab AB\n"},
    ),
    (
        "graph model exp --lm exp/lm.arpa.gz",
        "exp/lm.arpa.gz: is one of the inputs",
        {"exp/graph.json": "{}", "exp/lm.arpa.gz": "x"},
    ),
    ("align model data data", "data: is one of the inputs", {}),
    (
        "align model data exp --corrected exp/textgrid",
        "exp/textgrid: is one of the inputs",
        {"exp/ali.ark": "x", "exp/textgrid/ab.TextGrid": "by hand"},
    ),
    (
        "align sounds exp --corrected exp/sounds",
        "exp/sounds: is one of the inputs",
        {"exp/sounds/ab.TextGrid": "by hand"},
    ),
    (
        "align sounds exp --lexicon exp/model/lexicon.txt",
        "exp/model: is one of the inputs, or holds one",
        {"exp/model/lexicon.txt": LEXICON, "exp/.speech3_align.json": "{}"},
    ),
    (
        "import ali exp --graph exp/graph",
        "exp/graph: is one of the inputs",
        {"ali/final.mdl": "x", "exp/graph/HCLG.fst": "x"},
    ),
    ("score data/text exp/per_utt --details exp", "exp/per_utt: is one of the inputs", {"exp/per_utt": "ab AB\n"}),
    # The output holds something else.
    ("fix data exp", "exp/text: exists, and is not from an earlier run", {"exp/text": "my thesis\n"}),
    ("subset data other --first 1", "other: .*utterances that are not in data, such as x", OTHER),
    ("combine other data", "other: .*utterances that are not in data, such as x", OTHER),
    ("split data . 2 --by utterance", "1: .*utterances that are not in data, such as x", {"1/utt2spk": "x x\n"}),
    ("speakers data --model model --out other", "other: .*utterances that are not in data, such as x", OTHER),
    ("augment data other --augment noisy", "other: .*utterances that are not in data, such as x", OTHER),
    ("augment data exp --augment noisy", "exp/wav/aug1-ab.wav: exists, and is", {"exp/wav/aug1-ab.wav": "mine"}),
    ("stats data --out exp", "--out exp/oov.txt: exists, and is not from an earlier run", {"exp/oov.txt": "mine"}),
    ("extract data model --features fbank40", "model: holds a model", {}),
    ("extract data exp --features fbank40", "exp/feats.scp: exists, and is not", {"exp/feats.scp": "ab kaldi.ark:3\n"}),
    ("extract data frames --features fbank40", "frames: holds packed frames", {}),
    ("pack data model --ali ali --hmm model --features fbank40", "model: holds a model", {"ali/ali.ark": "x"}),
    (
        "pack data exp --ali ali --hmm model --features fbank40",
        "exp/features.yaml: exists, and is not",
        {"ali/ali.ark": "x", "exp/features.yaml": "kind: fbank\n"},
    ),
    ("train my.yaml --out exp", "exp/hmm.json: exists, and is not", {"exp/hmm.json": "{}", "exp/ali.ark": "x"}),
    (
        "train my.yaml --out exp --restart",
        "exp: holds a language model",
        {"exp/run.json": "{}", "exp/neural.safetensors": "x", "exp/checkpoints/mine": "x"},
    ),
    ("pretrain sounds --out exp", "--out exp/features: exists, and is not", {"exp/features/fbank40/feats.scp": "x"}),
    ("pretrain sounds --out exp --restart", "--out exp/frames: exists", {"exp/frames/tri/train.frames": "x"}),
    ("pretrain sounds --out net", "--out net: holds a model", {}),
    ("lm train text.txt --out notes.txt", "--out notes.txt: exists and is not an ARPA file", {}),
    ("lm train text.txt --out sounds", "--out sounds: is a directory", {}),
    ("lm train text.txt --out model --neural lstm", "--out model: holds a model", {}),
    ("lm train text.txt --out notes.txt --neural lstm", "--out notes.txt: is a file", {}),
    ("lm prune lm.arpa.gz notes.txt --threshold 0", "notes.txt: exists and is not an ARPA file", {}),
    ("g2p train lexicon.txt notes.txt", "notes.txt: exists and is not a file of speech3 g2p train", {}),
    ("inspect sounds/ab.wav --out notes.txt", "--out notes.txt: exists and is not a PNG picture", {}),
    (
        "transcribe model sounds/ab.wav --textgrid sounds",
        "sounds/ab.TextGrid: is not known to be from speech3 transcribe",
        {"sounds/ab.TextGrid": "by hand"},
    ),
    ("transcribe model sounds/ab.wav --lattice exp", "exp/words.txt: exists, and is not", {"exp/words.txt": "x 1\n"}),
    ("transcribe model sounds/ab.wav --lattice exp", "exp/lat.ark: exists, and is not", {"exp/lat.ark": "Kaldi's"}),
    ("decode model data other", "other: holds a data directory", OTHER),
    ("decode model data model/graph", "model/graph: holds a decoding graph", {}),
    ("decode model data exp", "exp/trans.ark: exists, and is not", {"exp/trans.ark": "x", "exp/hmm.json": "{}"}),
    ("decode model data exp --lattice", "exp/words.txt: exists, and is not", {"exp/words.txt": "x 1\n"}),
    ("decode model data exp", "exp/feats/feats.scp: exists, and is not", {"exp/feats/feats.scp": "ab kaldi.ark:3\n"}),
    (
        "rescore dec lm.arpa.gz exp",
        "exp/words.txt: exists, and is not",
        {**LATTICES, "exp/words.txt": "x 1\n"},
    ),
    ("graph model net/graph --sentences words.txt", "net/graph: this is a model's own graph", {}),
    ("align model data model", "model: holds a model", {}),
    ("align model data other", "other: holds a data directory", OTHER),
    ("align model data exp", "exp/split/text: exists, and is not", {"exp/split/text": "mine"}),
    ("align model data exp", "exp/textgrid: exists, and is not", {"exp/textgrid/ab.TextGrid": "by hand"}),
    ("align sounds exp", "exp/model: exists, and is not", {"exp/model/hmm.json": "{}"}),
    ("align sounds exp", "exp/feats: exists, and is not", {"exp/feats/feats.scp": "x"}),
    ("forward model data exp", "exp/bad.txt: exists, and is not", {"exp/bad.txt": "mine"}),
    ("export net other.onnx", "other.onnx: exists and is not from an earlier export", {"other.onnx": "mine"}),
    ("export-kaldi model lang", "lang/topo: exists, and is not", {"lang/topo": "Kaldi's"}),
    ("export-kaldi model local", "local/dict/lexicon.txt: exists", {"local/dict/lexicon.txt": LEXICON}),
    ("import ali exp", "exp/graph: exists, and is not", {"ali/final.mdl": "x", "exp/graph/HCLG.fst": "x"}),
    ("compare exp --out notes.txt", "--out notes.txt: is a file", {}),
    ("train my.yaml --out exp", "exp/MODEL_CARD.md: exists, and is not", {"exp/MODEL_CARD.md": "# My model\n"}),
    (
        "score data/text data/text --card net",
        "net/MODEL_CARD.md: exists and is not a model card of speech3",
        {"net/MODEL_CARD.md": "# My model\n"},
    ),
    ("score data/text hyp.txt --details exp", "exp/confusions: exists", {"exp/confusions": "x", "hyp.txt": "ab AB\n"}),
)


@pytest.mark.parametrize(("command", "message", "files"), ROWS, ids=[f"{row[0]} ({row[1]})" for row in ROWS])
def test_nothing_of_the_users_is_replaced(
    here: Path, program: Callable[..., Any], command: str, message: str, files: dict[str, str]
) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    before = contents(here)
    with pytest.raises(OccupiedError, match=message):
        with_error(program(*command.split()))
    assert contents(here) == before


def with_error(result: Any) -> Any:
    if result.exception:
        raise result.exception
    return result


@pytest.mark.parametrize(
    "command",
    [
        "fix data exp",
        "subset data exp --first 1",
        "combine exp data more",
        "split data exp 2 --by utterance",
        "augment data exp --augment noisy --jobs 1",
        "stats data --lexicon lexicon.txt --out exp",
        "extract data exp --features fbank40 --jobs 1",
        "extract data data --features fbank40 --jobs 1",
        "lm train text.txt --out exp.arpa.gz",
        "lm prune lm.arpa.gz exp.arpa --threshold 0",
        "inspect sounds/ab.wav --out exp.png",
        "transcribe model sounds/ab.wav --textgrid exp --lattice exp",
        "decode model data exp --jobs 1 --lattice --nbest 2",
        "decode model data model --jobs 1",
        "graph model exp --sentences words.txt",
        "align model data exp --jobs 1",
        "forward model data exp --jobs 1",
        "export-kaldi model exp",
        "score data/text data/text --details exp",
    ],
)
def test_the_same_command_may_be_run_again(here: Path, program: Callable[..., Any], command: str) -> None:
    inputs = {name: content for name, content in contents(here).items() if not name.startswith("model")}
    for _ in range(2):
        with_error(program(*command.split()))
    assert inputs.items() <= contents(here).items()


def test_decoding_beside_speakers_that_are_not_ours(here: Path, program: Callable[..., Any]) -> None:
    """A list of speakers without transforms is not from an earlier decoding, and is left alone."""
    Path("exp").mkdir()
    Path("exp/spk2utt").write_text("a ab\n")
    with_error(program("decode", "model", "data", "exp", "--jobs", 1))
    assert Path("exp/spk2utt").read_text() == "a ab\n" and Path("exp/hyp.txt").exists()


def test_a_textgrid_that_was_corrected_by_hand_stays(here: Path, program: Callable[..., Any]) -> None:
    with_error(program("transcribe", "model", "sounds/ab.wav", "--textgrid", "exp"))
    Path("exp/ab.TextGrid").write_text("corrected")
    with pytest.raises(OccupiedError, match=r"exp/ab\.TextGrid: is not known to be from .*, or was changed since"):
        with_error(program("transcribe", "model", "sounds/ab.wav", "--textgrid", "exp"))
    assert Path("exp/ab.TextGrid").read_text() == "corrected"


def test_textgrid_of_another_recording_of_that_name_stays(here: Path, program: Callable[..., Any]) -> None:
    for _ in range(2):
        with_error(program("transcribe", "model", "sounds/ab.wav", "--textgrid", "exp"))
    Path("more/again").mkdir(parents=True)
    Path("more/again/ab.wav").write_bytes(Path("sounds/ab.wav").read_bytes())
    with pytest.raises(OccupiedError, match=r"exp/ab\.TextGrid: .*sounds/ab\.wav"):
        with_error(program("transcribe", "model", "more/again/ab.wav", "--textgrid", "exp"))


def test_names_of_presets_are_no_inputs(here: Path, program: Callable[..., Any]) -> None:
    for _ in range(2):
        with_error(program("extract", "data", "fbank40", "--features", "fbank40", "--jobs", 1))
    assert Path("fbank40/feats.scp").exists()


def test_a_copy_that_was_being_mended_when_it_was_killed_may_be_made_again(
    here: Path, program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        Path("exp/mended").mkdir()
        Path("exp/mended/a.wav").touch()
        raise KeyboardInterrupt

    fault = validation.Fault("", "", "", "", "", mend="ab")
    monkeypatch.setattr(validation, "_kept", lambda report, drop: report.data)
    monkeypatch.setattr(validation, "_with_mended", killed)
    with monkeypatch.context() as broken:
        whole = validation.validate
        broken.setattr(validation, "validate", lambda *given, **keys: replace(whole(*given, **keys), faults=(fault,)))
        with pytest.raises(KeyboardInterrupt):
            validation.fix_datadir("data", "exp")
    validation.fix_datadir("data", "exp")
    assert Path("exp/text").exists()
