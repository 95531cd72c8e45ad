"""What tests of several layers need."""

import pytest

from speech3.models.layers import gemm_library, use_gemm_library


@pytest.fixture(params=["onednn", "stock"])
def library(request):
    before = gemm_library()
    use_gemm_library(request.param)
    if gemm_library() != request.param:
        pytest.skip("this PyTorch has no oneDNN product")
    yield request.param
    use_gemm_library(before)
