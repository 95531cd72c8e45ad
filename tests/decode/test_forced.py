"""The files that `speech3 align` writes and removes (for its results see tests/cli/test_align.py)."""

from pathlib import Path

from speech3.data.datadir import DataDir
from speech3.decode.align import Outcome, _write_split
from speech3.hmm.alignment.align import Aligned, limits_of
from speech3.hmm.alignment.times import FrameClock


def test_parts_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "split" / "wav").mkdir(parents=True)
    for name in ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "wav/a.wav"):
        (tmp_path / "split" / name).write_text("a a\n")
    data = DataDir(tmp_path, {"a": "a.wav"}, {})
    _write_split(
        tmp_path, data, Outcome(Aligned(), {}, [], {}, limits_of(Aligned())), {}, {}, {}, FrameClock(0.01, 0.0075)
    )
    assert [path.name for path in (tmp_path / "split").iterdir()] == ["wav"]  # other files are kept
