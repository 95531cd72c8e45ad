"""The files that `speech3 align` writes and removes (for its results see tests/cli/test_align.py)."""

from pathlib import Path

from speech3.data.datadir import DataDir
from speech3.decode.align import FoundAlignment, _write_split
from speech3.hmm.alignment.align import Aligned, limits_of


def test_parts_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "split" / "wav").mkdir(parents=True)
    for name in ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "wav/a.wav"):
        (tmp_path / "split" / name).write_text("a a\n")
    data = DataDir(tmp_path, {"a": "a.wav"}, {})
    recognizer = None  # which is only asked for the times of parts
    found = FoundAlignment(recognizer, Aligned(), {}, [], {}, limits_of(Aligned()), {}, {}, {}, 0)
    _write_split(tmp_path, data, found)
    assert [path.name for path in (tmp_path / "split").iterdir()] == ["wav"]  # other files are kept
