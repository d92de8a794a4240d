"""Where a step's time goes."""

from __future__ import annotations

import pytest
import torch

from pmsfl.bench.profile import IDLE, Share, kind_of, profile_steps, summarise


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            "sm90_xmma_fprop_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
            "convolution forward",
        ),
        ("sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolution backward"),
        ("cutlass_80_wgrad2d_grouped_optimized_bf16", "convolution backward"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NHWC<__nv_bfloat16, float>", "norm and pointwise"),
        ("triton_red_fused__native_batch_norm_legit_functional_relu_7", "norm and pointwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BitwiseXorFunctor<long>>", "keyed masks"),
        ("triton_poi_fused_bitwise_xor_mul_rshift_2", "keyed masks"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimiser"),
        ("Memcpy DtoD (Device -> Device)", "copies and gather"),
        ("void at::native::vectorized_gather_kernel<16, long>", "copies and gather"),
        ("void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>", "copies and gather"),
        ("nvjet_tst_128x64_64x8_2x1_v_bz_TNN", "convolution forward"),
        ("aten::mkldnn_convolution", "convolution forward"),
        ("aten::convolution_backward", "convolution backward"),
        ("aten::native_batch_norm_backward", "norm and pointwise"),
        ("something new", "other"),
    ],
)
def test_kernels_are_told_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_what_no_kernel_accounts_for_is_idle() -> None:
    found = summarise([Share("fprop", 2.0, 1.0), Share("wgrad", 3.0, 2.0), Share("gemm", 1.0, 1.0)], ms_step=10.0)
    assert {k.name: k.ms for k in found.kinds} == {
        IDLE: 4.0,
        "convolution backward": 3.0,
        "convolution forward": 3.0,
    }
    assert [k.name for k in found.kernels] == ["wgrad", "fprop", "gemm"]


def test_operations_on_the_cpu_are_found() -> None:
    a = torch.randn(64, 64)
    found = profile_steps(lambda: [torch.mm(a, a) for _ in range(4)], 2, torch.device("cpu"))
    assert {k.name: k.calls for k in found.kernels}["aten::mm"] == 2
    assert found.ms_step > 0
