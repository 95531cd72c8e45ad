"""A packed file of a thousand hours that takes no room: its frames and senones are holes, so they are zero."""

import zlib
from pathlib import Path

import numpy as np

from speech3.frames.packed import BLOCK_BYTES, HEAD_BYTES, SectionWriter

FRAMES, DIM, UTTERANCE_FRAMES, SENONES = 360_000_000, 40, 600, 3000


class _HoleWriter(SectionWriter):
    """Writes holes, too: whole blocks of zeros whose checksum is known without reading them."""

    def hole(self, name: str, size: int) -> None:
        head = -(self.position - HEAD_BYTES) % BLOCK_BYTES  # up to the next block
        blocks, tail = divmod(size - head, BLOCK_BYTES)
        start = self.position
        self.write(bytes(head))
        self.stream.seek(blocks * BLOCK_BYTES, 1)
        self.checksums += [zlib.crc32(bytes(BLOCK_BYTES))] * blocks
        self.position += blocks * BLOCK_BYTES
        self.write(bytes(tail))
        self.places[name] = (start, size)


def write_sparse(path: Path, frames: int = FRAMES) -> None:
    """Write such a file; 360 million frames are a thousand hours."""
    with path.open("wb") as stream:
        writer = _HoleWriter(stream)
        writer.hole("frames", frames * DIM * 2)
        writer.hole("senones", frames * 2)
        offsets_U1 = np.append(np.arange(0, frames, UTTERANCE_FRAMES), frames)
        writer.section("offsets", [offsets_U1.astype("<i8").tobytes()])
        writer.section("counts", [np.array([frames] + [0] * (SENONES - 1), "<i8").tobytes()])
        for name in ("mean", "variance"):
            writer.section(name, [bytes(8 * DIM)])
        writer.section("ids", ["\n".join(f"u{u:08d}" for u in range(len(offsets_U1) - 1)).encode()])
        writer.close(
            {
                "frames": frames,
                "utterances": len(offsets_U1) - 1,
                "dim": DIM,
                "dtype": "<f2",
                "senone_dtype": "<i2",
                "num_senones": SENONES,
                "info": {},
            }
        )
