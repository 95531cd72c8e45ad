"""Speed of LF-MMI: compared with the same criterion by PyTorch's sparse products, and as a share of an update.

    OMP_NUM_THREADS=1 python tests/benchmarks/sequence.py

A denominator as large as minilibri's (198 phones, 700 sentences of 100 phones, 500 pdfs), 32 chunks of 150 frames, the
network of the preset cnn_tdnn. Medians of `ROUNDS`, interleaved.
"""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from speech3.config.experiment import LfmmiSystemConfig
from speech3.engine.optimizers import AdamW, Muon
from speech3.frames.chunks import Chunk
from speech3.frames.packed import segment_labels
from speech3.models import build
from speech3.sequence import lfmmi
from speech3.sequence.forward_backward import denominator_log_z, value_and_gradient
from speech3.sequence.graph import estimate_phone_lm
from speech3.sequence.lfmmi import AlignmentNumerators, Denominator, LfMmi, assemble

ROUNDS, CHUNKS, FRAMES, PHONES, PDFS, BINS = 7, 32, 150, 198, 500, 40


def sentences(generator: np.random.Generator) -> list[list[int]]:
    """Random sentences in which each phone is followed by one of twelve, most often the first of these."""
    following = [generator.permutation(PHONES)[:12] + 1 for _ in range(PHONES + 1)]
    said = []
    for _ in range(700):
        phones = [0]
        for _ in range(100):
            phones.append(int(following[phones[-1]][min(11, int(generator.exponential(2.5)))]))
        said.append(phones[1:])
    return said


def in_sparse_products(y_BTS: torch.Tensor, graph: Denominator, leak: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of `value_and_gradient`, as a user of PyTorch would compute them."""
    with torch.enable_grad():
        y_TSB = y_BTS.permute(1, 2, 0).contiguous().requires_grad_()
        log_z = denominator_log_z(y_TSB, graph, leak)
        (posterior,) = torch.autograd.grad(log_z.sum(), y_TSB)
    return log_z.detach().double(), posterior.permute(2, 0, 1)


def seconds(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def problem(count: int = CHUNKS) -> tuple[Denominator, list[Chunk]]:
    """A denominator as large as minilibri's, and chunks from the sentences that it was made from."""
    generator = np.random.default_rng(0)
    said = sentences(generator)
    pdfs_PP2 = generator.integers(0, PDFS, (PHONES + 1, PHONES + 1, 2)).astype(np.int32)
    graph = assemble(estimate_phone_lm(said), PDFS, pdfs_PP2)
    chunks = []
    for phones in said[:count]:
        labels = segment_labels(np.array(phones), np.cumsum([0, *generator.integers(4, 12, len(phones))]))
        chunks.append(Chunk(labels, int(generator.integers(0, len(labels) - FRAMES))))
    return graph, chunks


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    graph, chunks = problem()
    make, criterion = AlignmentNumerators(graph, FRAMES), LfMmi(graph)
    config = LfmmiSystemConfig.model_validate({}).model
    model = build(config, BINS, PDFS, seed=0)
    muon, adamw = Muon(model, (0.95, 0.98), weight_decay=0.1), AdamW(model, (0.9, 0.98), weight_decay=0.1)
    context = model.left_context + FRAMES + model.right_context
    feats = torch.randn(CHUNKS, context, BINS, generator=torch.Generator().manual_seed(0))
    y_BTS = torch.randn(CHUNKS, FRAMES // 3, PDFS).requires_grad_()
    numerators = make(chunks)

    def loss_alone() -> None:
        loss, _ = criterion((y_BTS, y_BTS), make(chunks))
        torch.autograd.grad(loss, y_BTS)

    def loss_in_sparse_products() -> None:
        lfmmi.value_and_gradient = in_sparse_products
        try:
            loss_alone()
        finally:
            lfmmi.value_and_gradient = value_and_gradient

    def update(optimizer: AdamW, bf16: bool = False) -> None:
        model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            main_BTS, xent_BTS = model(feats)
        loss, _ = criterion((main_BTS.float(), xent_BTS.float()), make(chunks))
        optimizer.step(torch.autograd.grad(loss, list(model.parameters())), 1e-4)

    ours, rival = (each(y_BTS.detach(), graph, 0.1) for each in (value_and_gradient, in_sparse_products))
    assert torch.allclose(ours[0], rival[0], rtol=1e-5)
    assert torch.allclose(ours[1], rival[1], atol=1e-4)
    works = (
        loss_alone,
        loss_in_sparse_products,
        partial(update, muon),
        partial(update, adamw),
        partial(update, muon, bf16=True),
    )
    for work in works:
        work()
    times = [[seconds(work) for work in works] for _ in range(ROUNDS)]
    alone, sparse, whole, with_adamw, in_bf16 = (statistics.median(column) for column in zip(*times, strict=True))
    about = f"{graph.num_states} states, {len(graph.in_src_A)} arcs, {CHUNKS} chunks of {FRAMES} frames"
    figures = [
        ("lfmmi_over_torch_sparse", sparse / alone, "times", f"the same criterion in sparse PyTorch products; {about}"),
        ("lfmmi_share", alone / whole, "share", "an update of the preset cnn_tdnn, criterion included"),
        ("lfmmi_s_per_minute", 60 * alone / (len(numerators) * 0.03), "s", "none; criterion, a minute of speech"),
        ("update_s", whole, "s", "none"),
        ("bf16_over_float32_lfmmi", whole / in_bf16, "ratio", "the same update in float32"),
        ("muon_over_adamw", whole / with_adamw, "ratio", "the same update with AdamW"),
    ]
    for name, value, unit, against in figures:
        print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "rival": against}), flush=True)


if __name__ == "__main__":
    main()
