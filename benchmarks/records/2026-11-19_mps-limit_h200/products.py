"""bf16 products of a Transformer's training against float32 ones, on as much of a GPU as this process may use.

python products.py [CLIENTS,BATCH,TOKENS,WIDTH]
"""

import sys

import torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    print("multiprocessors seen:", torch.cuda.get_device_properties(0).multi_processor_count, flush=True)
torch.backends.cuda.matmul.allow_tf32 = False
K, B, T, W = (int(x) for x in sys.argv[1].split(",")) if len(sys.argv) > 1 else (20, 32, 140, 768)


def error(found, right):
    return (found.double() - right.double()).norm().item() / right.double().norm().item()


def check(name, f, *tensors):
    right = f(*[x.float() for x in tensors])
    for _ in range(3):
        found = f(*[x.bfloat16() for x in tensors])
        nan, inf = int(found.isnan().sum()), int(found.isinf().sum())
        print(f"{name:28s} nan {nan} inf {inf} error {error(found.nan_to_num(), right):.2e}", flush=True)


def normal(*shape):
    return torch.randn(*shape, device=device)


check("clients linear", torch.bmm, normal(K, B * T, W), normal(K, W, 3 * W) / W**0.5)
check("clients linear, weights", lambda a, b: torch.bmm(a.transpose(1, 2), b), normal(K, B * T, W), normal(K, B * T, 3 * W))
check("top linear", torch.mm, normal(K * B * T, W), normal(W, 2 * W) / W**0.5)
check("top linear, weights", lambda a, b: torch.mm(a.T, b), normal(K * B * T, W), normal(K * B * T, 2 * W))
check("scores", lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), normal(K * B, T, 2, W // 2), normal(K * B, T, 2, W // 2))
check("mixed", lambda a, v: torch.einsum("bhqk,bkhd->bqhd", a.softmax(-1), v), normal(K * B, 2, T, T), normal(K * B, T, 2, W // 2))
check("scores, backward", lambda a, k: torch.einsum("bhqk,bkhd->bqhd", a, k), normal(K * B, 2, T, T), normal(K * B, T, 2, W // 2))
check("softmax", lambda a: a.softmax(-1), normal(K * B, 2, T, T))
check("norm", lambda a: torch.nn.functional.layer_norm(a, (W,)), normal(K * B, T, W))
check("embedding, weights", lambda a, b: torch.bmm(a.transpose(1, 2), b), normal(K, B * T, 140), normal(K, B * T, W))
check("head", torch.mm, normal(K * B, W), normal(W, 19))
