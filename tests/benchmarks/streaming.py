"""Word error rate of streaming against offline, latency and real-time factor: one JSON line.

    OMP_NUM_THREADS=1 python tests/benchmarks/streaming.py MODEL DATA [--graph graph_tuning] [--joined] [--whole]

Every utterance of a data directory is a stream, fed in pieces of 0.1 s; with `--joined` all utterances of a speaker
are one. `--whole` ends no segment at pauses. The clock is virtual: a piece arrives when its last sample was spoken, and
is recognised after that as soon as the pieces before it are, in the time that this takes here. So latencies are those
of somebody who speaks to this machine, and need not be waited for.

wer_stream, wer_offline
    Fractions. Offline is `Recognizer.decode` of features as they are extracted, utterance by utterance.
same
    Share of utterances whose words are the same (not with `--joined`).
first_mean_s, first_p95_s, final_mean_s, final_p95_s
    From the arrival of the end of a word to the first partial result with as many words, and to its final result.
rtf, rtf_cpu
    Seconds of work a second of sound, by the clock and of the CPU (with reading the files); the machine may have other
    work.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import jiwer
import numpy as np
import torch

from speech3.data import audio
from speech3.data.datadir import DataDir, read_datadir
from speech3.decode.recognizer import Recognizer, load_recognizer
from speech3.decode.streaming import Pauses, Stream
from speech3.decode.transcribing import Latencies, Meter
from speech3.features import extract
from speech3.io import ArkReader

_PIECE_S = 0.1
_NEVER = Pauses(1e9, 1e9, 1e9, 1e9, 1e9)


def stream_of(recognizer: Recognizer, wave_S: np.ndarray, rate_hz: int, pauses: Pauses, meter: Meter) -> str:
    """Recognise one stream on the virtual clock."""
    stream, now_s, size = Stream(recognizer, rate_hz, pauses), 0.0, round(_PIECE_S * rate_hz)
    texts: list[str] = []
    for start in range(0, len(wave_S), size):
        arrived_s = min(start + size, len(wave_S)) / rate_hz
        meter.arrived(arrived_s, arrived_s)
        began = time.perf_counter()
        partial = stream.accept(wave_S[start : start + size])
        took_s = time.perf_counter() - began
        meter.busy_s += took_s
        now_s = max(now_s, arrived_s) + took_s
        for result in stream.ended():
            meter.final(result, now_s)
            texts.append(result.text)
        meter.partial(partial, now_s)
    began = time.perf_counter()
    result = stream.finish()
    took_s = time.perf_counter() - began
    meter.busy_s += took_s
    meter.final(result, now_s + took_s)
    return " ".join([*texts, result.text]).strip()


def sounds(data: DataDir, rate_hz: int, joined: bool) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name, text and samples of each stream."""
    groups = data.speakers() if joined else {key: [key] for key in sorted(data.utterances)}
    for name, keys in sorted(groups.items()):
        waves = [audio.load(data, key, sample_rate_hz=rate_hz, resample=True)[0] for key in sorted(keys)]
        yield name, " ".join(data.utterances[key].text or "" for key in sorted(keys)), np.concatenate(waves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--graph", type=Path)
    parser.add_argument("--joined", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recognizer = load_recognizer(options.model)
    if options.graph:
        graph = recognizer.read_graph(options.model / options.graph)
        vars(recognizer)["graph"] = graph  # in place of the cached one
    data = read_datadir(options.data)
    rate_hz = recognizer.features.sample_frequency or 16000
    pauses = _NEVER if options.whole else Pauses()
    refs, hyps, final, shown, busy_s, spoken_s = {}, {}, Latencies(), Latencies(), 0.0, 0.0
    stream_of(recognizer, np.zeros(rate_hz, np.float32), rate_hz, pauses, Meter())  # loads what is compiled
    began_cpu = time.process_time()
    for name, refs[name], wave_S in sounds(data, rate_hz, options.joined):
        meter = Meter(until_final=final, until_shown=shown)
        hyps[name] = stream_of(recognizer, wave_S, rate_hz, pauses, meter)
        busy_s, spoken_s = busy_s + meter.busy_s, spoken_s + meter.duration_s
    cpu_s = time.process_time() - began_cpu
    offline_config = recognizer.features.model_copy(update={"resample": True})
    with TemporaryDirectory() as out:
        extract(data, Path(out), offline_config, 1)
        feats = dict(ArkReader(Path(out) / "feats.scp"))
    offline = {h.utterance: " ".join(h.words) for h in recognizer.decode(feats).hypotheses}
    texts = {key: utterance.text or "" for key, utterance in data.utterances.items()}
    print(json.dumps({
        "model": str(options.model), "data": str(options.data), "joined": options.joined, "whole": options.whole,
        "wer_stream": round(jiwer.wer(list(refs.values()), list(hyps.values())), 4),
        "wer_offline": round(jiwer.wer([texts[key] for key in offline], list(offline.values())), 4),
        "same": None if options.joined else round(float(np.mean([hyps[key] == offline.get(key) for key in hyps])), 3),
        **{f"{name}_{what}_s": round(float(value), 3) for name, each in (("first", shown), ("final", final))
           for what, value in (("mean", each.total_s / each.count), ("p95", each.percentile_s(95)))},
        "rtf": round(busy_s / spoken_s, 4), "rtf_cpu": round(cpu_s / spoken_s, 4), "seconds": round(spoken_s),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
