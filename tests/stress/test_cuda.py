"""The CUDA kernels compile for more precisions and numbers of factors."""

from __future__ import annotations

import pytest
from solvers.cuda.test_kernels import COMPILED_TOO, compile_for_a_gpu


@pytest.mark.parametrize(("group", "dtype", "k"), COMPILED_TOO)
def test_the_kernels_compile_for_a_gpu(group, dtype, k, tmp_path):
    compile_for_a_gpu(group, dtype, k, tmp_path)
