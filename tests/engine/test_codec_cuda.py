"""The Triton kernels of the ternary code against those of the CPU: in Triton's interpreter, and on a GPU if any.

Whether a kernel is interpreted is settled when it is defined, so the interpreter has a process of its own: this file,
run as a program.
"""

import pytest
import torch

from speech3.engine import codecs
from speech3.engine.codecs import Ternary, key_of, layout


def compare(device: str, kernels) -> None:
    """Scales to a rounding; for the same scales, the same words and the same sums."""
    for bucket, sizes in ((0, (700, 1024, 1, 1100)), (1, (9,)), (100, (250,))):
        vector = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(bucket)) ** 3
        vector[3] = 0
        tensors = list(vector.split(sizes))
        where = layout(tensors, bucket=bucket)
        limits, scales = torch.empty(2, len(where.sizes_B))
        codecs.statistics(vector, where, 2.5, limits, scales)
        words, out = torch.zeros(where.words, dtype=torch.int32), vector.clone()
        key = key_of(bucket) | (1 << 31) | (1 << 62)
        codecs.pack(vector, where, limits, scales, key, words)
        codecs.add(words, where, scales, -0.5, out)
        there, starts, counts, tiles = (
            each.to(device) for each in (vector, where.starts_B, where.sizes_B, where.tiles_T5)
        )
        found_limits, found_scales = torch.empty(2, len(counts), device=device)
        kernels.statistics(there, starts, counts, tiles, 2.5, found_limits, found_scales)
        torch.testing.assert_close(found_limits.cpu(), limits, rtol=1e-6, atol=0)
        torch.testing.assert_close(found_scales.cpu(), scales, rtol=1e-6, atol=0)
        found, found_out = torch.zeros_like(words, device=device), there.clone()
        kernels.pack(there, tiles, limits.to(device), scales.to(device), key, found)
        kernels.add(found, tiles, scales.to(device), -0.5, found_out)
        assert torch.equal(found.cpu(), words)
        torch.testing.assert_close(found_out.cpu(), out, rtol=1e-6, atol=1e-7)
        sums = torch.arange(16 * where.words, dtype=torch.int16).view(16, -1) % 9 - 4
        codecs.add_sums(sums, where, scales, 0.25, out)
        kernels.add_sums(sums.to(device), tiles, scales.to(device), 0.25, found_out)
        torch.testing.assert_close(found_out.cpu(), out, rtol=1e-6, atol=1e-6)
    for value in (float("nan"), float("inf"), -float("inf")):
        broken = torch.ones(2000)
        broken[1500] = value
        where = layout(list(broken.split(1000)))
        limits, scales = torch.empty(2, 2, device=device)
        arguments = [each.to(device) for each in (broken, where.starts_B, where.sizes_B, where.tiles_T5)]
        kernels.statistics(*arguments, 2.5, limits, scales)
        assert scales.isnan().tolist() == [False, True]
        words = torch.ones(where.words, dtype=torch.int32, device=device)
        kernels.pack(arguments[0], arguments[3], limits, scales, 1, words)
        assert not words[63:].any()


def test_kernels_in_the_interpreter(interpreted):
    interpreted(__file__)


_TYPES = {
    "tiles_T5": "*i64", "sums_T2": "*fp64", "largest_T": "*i32", "words_M": "*i32", "key0": "i32", "key1": "i32",
    "times": "fp32", "sums_16M": "*i16", "words": "i32", "SIZE": "constexpr", "WORDS": "constexpr",
}  # fmt: skip


@pytest.mark.parametrize("kernel", ["_statistics", "_pack", "_add", "_add_sums"])
def test_kernels_compile_for_a_gpu(kernel):
    triton = pytest.importorskip("triton", reason="no Triton: it comes with PyTorch for CUDA")
    from triton.backends.compiler import GPUTarget

    from speech3.engine import codecs_cuda as cuda

    if "nvidia" not in triton.backends.backends:
        pytest.skip("this Triton compiles for no GPU of NVIDIA's")
    function = getattr(cuda, kernel)
    types = {name: _TYPES.get(name, "*fp32") for name in function.arg_names}
    constants = {name: {"SIZE": 1024, "WORDS": 64}[name] for name in types if types[name] == "constexpr"}
    source = triton.compiler.ASTSource(function, types, constants)
    assert "st.global" in triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]


def test_no_key_has_a_kernel_of_its_own():
    """Nor is 1 made a constant, for which `_pack` would not compile."""
    pytest.importorskip("triton", reason="no Triton: it comes with PyTorch for CUDA")
    from speech3.engine import codecs_cuda as cuda

    keys = [parameter for parameter in cuda._pack.params if parameter.name.startswith("key")]
    assert len(keys) == 2 and all(parameter.do_not_specialize for parameter in keys)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_kernels_on_a_gpu():
    pytest.importorskip("triton")
    from speech3.engine import codecs_cuda as cuda

    compare("cuda", cuda)
    vector = torch.randn(5000)
    where = layout([vector.cuda()])
    out = torch.zeros(5000, device="cuda")
    message = Ternary(where).encode(vector.cuda(), 5)
    Ternary(where).add(message, out)
    assert out.unique().numel() == 3


if __name__ == "__main__":
    from speech3.engine import codecs_cuda as cuda

    compare("cpu", cuda)
