"""What tests of several layers need."""

import pytest

from speech3.models.dnn import product, use


@pytest.fixture(params=["onednn", "stock"])
def library(request):
    before = product()
    use(request.param)
    if product() != request.param:
        pytest.skip("this PyTorch has no oneDNN product")
    yield request.param
    use(before)
